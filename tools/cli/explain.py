# SPDX-License-Identifier: Apache-2.0
"""`attnsmith explain`: the command line of attnsmith.tools.explain and its text. No torch unless the device is cuda."""

from __future__ import annotations

import json
from typing import Any

import click
from attnsmith.codegen.spec import DType, Mask
from attnsmith.tools.explain import Problem, explain, resolve_target


@click.command()
@click.option("--device", default="a100", show_default=True, help="a100, rtx3090, rtx4090, h100, h200, sm_90a, cuda.")
@click.option("--dtype", type=click.Choice([dtype.value for dtype in DType]), default="bf16", show_default=True)
@click.option("--head-dim", type=int, default=128, show_default=True, help="Of q and k: 1 to 256.")
@click.option("--head-dim-v", type=int, default=None, help="Of v; default: as --head-dim.")
@click.option("--causal/--no-causal", default=False, show_default=True)
@click.option("--seqlen-q", type=click.IntRange(min=0), default=None, help="Query rows; default: long.")
@click.option("--out-dtype", type=click.Choice(["fp16", "bf16"]), default=None, help="Default: as --dtype; FP8: bf16.")
@click.option("--v-col-major", "v_is_col_major", is_flag=True, help="V's keys are contiguous (FP8).")
@click.option("--pack-gqa", "packs_gqa", is_flag=True, help="Query heads of a group share a tile (SM90).")
@click.option("--json", "as_json", is_flag=True, help="Facts as JSON on stdout.")
def command(
    device: str,
    dtype: str,
    head_dim: int,
    head_dim_v: int | None,
    causal: bool,
    seqlen_q: int | None,
    out_dtype: str | None,
    v_is_col_major: bool,
    packs_gqa: bool,
    as_json: bool,
) -> None:
    """Say which kernel serves a problem, why, what it needs, and what else could serve it."""
    problem = Problem(
        dtype=DType(dtype),
        head_dim=head_dim,
        head_dim_v=head_dim if head_dim_v is None else head_dim_v,
        mask=Mask.CAUSAL if causal else Mask.FULL,
        seqlen_q=seqlen_q,
        out_dtype=None if out_dtype is None else DType(out_dtype),
        v_is_col_major=v_is_col_major,
        packs_gqa=packs_gqa,
    )
    facts = explain(problem, resolve_target(device))
    click.echo(json.dumps(facts, indent=2) if as_json else to_text(facts))


def to_text(facts: dict[str, Any]) -> str:
    """The facts as a person reads them."""
    kernel = facts["kernel"]
    lines = [f"{kernel['name']} for {facts['target']} ({facts['gpus']})", "", "why"]
    lines += [f"  {number}. {sentence}" for number, sentence in enumerate(facts["why"], start=1)]
    members = ", ".join(f"{name} {size}" for name, size in kernel["smem_members"].items())
    lines += [
        "",
        "needs",
        f"  shared memory  {kernel['smem_bytes']} of {kernel['smem_allowed']} B per CTA ({members})",
        f"  registers      about {kernel['register_estimate']} per thread, {kernel['num_threads']} threads",
        f"  residency      {kernel['ctas_per_sm']} CTAs per SM by these figures",
    ]
    if facts["alternatives"]:
        lines += ["", "would serve it too, in this order"]
        lines += [f"  {row['name']}: {row['reason']}" for row in facts["alternatives"]]
    return "\n".join(lines)
