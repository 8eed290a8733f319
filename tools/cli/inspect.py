# SPDX-License-Identifier: Apache-2.0
"""`attnsmith inspect`: compiles a selection (cached) and shows what the compiler made of it."""

from __future__ import annotations

import json
from typing import Any

import click
from attnsmith.tools.cli.progress import is_quiet, progress_bar
from attnsmith.tools.cli.selection import selection_options


@click.command("inspect")
@selection_options
@click.option("--jobs", type=click.IntRange(min=1), help="Compilations at once; default: by cores and memory.")
@click.option("--json", "as_json", is_flag=True, help="A JSON list with every fact, loops and their mixes included.")
def command(selection: Any, jobs: int | None, as_json: bool) -> None:
    """Show registers, spill bytes, shared memory, ptxas remarks and the tensor-core loops of compiled kernels.

    A loop counts SASS instructions per thread and iteration. "per score" divides its non-tensor instructions by the
    scores that a thread holds; in brackets, without those behind a branch (a rescale that most iterations skip). A
    loop is masked where it compares or selects about once per score.
    """
    from attnsmith.tools.inspect import inspect_kernels

    specs = selection.to_specs()
    with progress_bar("inspect", is_quiet=is_quiet()) as report:
        facts = inspect_kernels(specs, selection.target, jobs=jobs, progress=report)
    if as_json:
        click.echo(json.dumps([fact.to_dict() for fact in facts], indent=2))
    else:
        click.echo(_table(facts))
        _footer(facts)


_TITLES = ("kernel", "regs", "spill B", "smem B", "main loop", "mma", "per score", "anchor", "masked loop", "remarks")


def _row(fact: Any) -> tuple[str, ...]:
    main = fact.main_loop
    masked = max((loop for loop in fact.loops if loop.is_masked), key=lambda loop: loop.tensor, default=None)
    return (
        fact.kernel,
        str(fact.registers),
        str(fact.spill_bytes),
        str(fact.smem_bytes),
        str(main.instructions) if main else "-",
        str(main.tensor) if main else "-",
        f"{main.per_score:.1f} ({main.per_score_always:.1f})" if main else "-",
        f"{fact.anchor.per_score:.1f}" if fact.anchor else "-",
        f"{masked.per_score:.1f} ({masked.per_score_always:.1f})" if masked else "-",
        str(len(fact.remarks)),
    )


def _table(facts: list[Any]) -> str:
    rows = [_TITLES, *(_row(fact) for fact in facts)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_TITLES))]
    lines = []
    for row in rows:
        cells = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
        cells[0] = row[0].ljust(widths[0])
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def _footer(facts: list[Any]) -> None:
    for fact in facts:
        for remark in fact.remarks:
            click.echo(f"{fact.kernel}: {remark}", err=True)
    spilling = sum(fact.spill_bytes > 0 for fact in facts)
    click.echo(f"\n{len(facts)} kernels, {spilling} with spills", err=True)
