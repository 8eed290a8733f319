# SPDX-License-Identifier: Apache-2.0
"""`attnsmith gpu-check`: the command line of attnsmith.tools.gpu_check. Exit 0 ok, 1 something failed, 2 no GPU."""

from __future__ import annotations

from pathlib import Path

import click
from attnsmith.codegen.registry import KERNEL_SETS
from attnsmith.tools.gpu_check import Settings, gpu_hands, require_gpu, run_gpu_check


@click.command()
@click.option("--budget", type=click.FloatRange(min=0.1), default=8.0, show_default=True, help="Minutes, all together.")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("gpu-check-report"),
    show_default=True,
    help="Folder for report.json and report.md.",
)
@click.option("--set", "set_name", type=click.Choice(list(KERNEL_SETS)), default="default", show_default=True)
def command(budget: float, out: Path, set_name: str) -> None:
    """Check and time everything on the GPU at hand, inside a time budget and without network.

    Builds every kernel of the set, compares each with the fp64 reference, compares GPU and simulator on the same
    inputs, and times against PyTorch SDPA's backends. Writes report.json and report.md.
    """
    settings = Settings(target=require_gpu(), budget_seconds=budget * 60, out=out, set_name=set_name)
    results = run_gpu_check(settings, gpu_hands(), lambda text: click.echo(text, err=True))
    click.echo(f"{'ok' if results.ok else 'FAILED'}: {out / 'report.md'}, {out / 'report.json'}")
    click.get_current_context().exit(0 if results.ok else 1)
