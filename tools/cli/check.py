# SPDX-License-Identifier: Apache-2.0
"""`attnsmith check`: the command line of attnsmith.tools.check. Exit 0 within tolerance, 1 beyond it, 2 misuse."""

from __future__ import annotations

import json

import click
from attnsmith.tools.bench import bytes_read, bytes_written
from attnsmith.tools.check import CheckCase, CheckResult, run_check

SIZE = click.IntRange(min=0)
V_LAYOUT_HELP = "What of v is contiguous: head dims or keys."
SEED = click.IntRange(min=0, max=2**63 - 1)


@click.command()
@click.option("--device", default="sim:a100", show_default=True, help="cuda, sim:NAME (a100, h100, ...) or cpu.")
@click.option("--dtype", type=click.Choice(["fp16", "bf16", "e4m3", "e5m2"]), default="bf16", show_default=True)
@click.option("--batch", type=SIZE, default=1, show_default=True)
@click.option("--seqlen-q", type=SIZE, default=128, show_default=True, help="Query rows.")
@click.option("--seqlen-k", type=SIZE, default=None, help="Keys; default: as --seqlen-q.")
@click.option("--nheads", type=SIZE, default=2, show_default=True, help="Query heads.")
@click.option("--nheads-k", type=SIZE, default=None, help="Key heads; default: as --nheads.")
@click.option("--head-dim", type=SIZE, default=64, show_default=True, help="Of q and k.")
@click.option("--head-dim-v", type=SIZE, default=None, help="Of v; default: as --head-dim.")
@click.option("--causal/--no-causal", default=False, show_default=True, help="Bottom-right aligned causal mask.")
@click.option("--softmax-scale", type=float, default=None, help="Default: head_dim ** -0.5.")
@click.option("--v-layout", type=click.Choice(["row", "col"]), default="row", show_default=True, help=V_LAYOUT_HELP)
@click.option("--out-dtype", type=click.Choice(["fp16", "bf16"]), default=None, help="Default: --dtype; FP8: bf16.")
@click.option(
    "--pack-gqa/--no-pack-gqa", default=None, help="Query heads of a key head in one tile; default: automatic."
)
@click.option("--seed", type=SEED, default=0, show_default=True, help="Of the random inputs.")
@click.option("--json", "as_json", is_flag=True, help="The facts as JSON on stdout.")
def command(as_json: bool, seqlen_q: int, seqlen_k: int | None, **fields: object) -> None:
    """Run attention on fresh random input and compare out and lse with the fp64 reference.

    FP8 inputs come with random descales. The output is poisoned with NaN first. Exit code 1 when an error exceeds what
    the tolerance rule allows.
    """
    keys = seqlen_q if seqlen_k is None else seqlen_k
    case = CheckCase(seqlen_q=seqlen_q, seqlen_k=keys, **fields)  # type: ignore[arg-type]
    result = run_check(case)
    click.echo(json.dumps(result.to_dict(), indent=2) if as_json else to_text(result))
    click.get_current_context().exit(0 if result.ok else 1)


def to_text(result: CheckResult) -> str:
    """One line per fact."""
    lines = [result.case.label, f"kernels  {', '.join(result.kernels) or 'none launched'}  ({result.seconds:.2f} s)"]
    for name, tensor in result.tensors.items():
        verdict = "ok" if tensor.ok else "TOO LARGE"
        lines.append(f"{name:<8s} max error {tensor.max_abs_err:.3e}, allowed {tensor.allowed:.3e}  {verdict}")
    if result.stats is not None:
        stats = result.stats
        lines.append(
            f"moved    {bytes_read(stats):,} B read, {bytes_written(stats):,} B written in global "
            f"memory; {stats['warp_instructions']:,} warp instructions, {stats['tensor_flops']:,} tensor FLOP"
        )
    lines.append("ok" if result.ok else "FAILED")
    return "\n".join(lines)
