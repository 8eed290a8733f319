# SPDX-License-Identifier: Apache-2.0
"""`attnsmith inspect`: compiles a selection (cached) and shows what the compiler made of it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import click
from attnsmith.tools.anchors import SPLIT_NAMES
from attnsmith.tools.cli.progress import is_quiet, progress_bar
from attnsmith.tools.cli.selection import selection_options


@click.command("inspect")
@selection_options
@click.option("--jobs", type=click.IntRange(min=1), help="Compilations at once; default: by cores and memory.")
@click.option("--json", "as_json", is_flag=True, help="A JSON list with every fact, loops and their mixes included.")
def command(selection: Any, jobs: int | None, as_json: bool) -> None:
    """Show registers, spill bytes, shared memory, ptxas remarks and the tensor-core loops of compiled kernels.

    A loop counts SASS instructions per thread and iteration. "per score" divides its non-tensor instructions by the
    scores that a computing thread holds: those that every iteration executes (per_score_always in JSON), and in
    brackets all of them (per_score), with what is behind a branch, such as the rescale of O that most iterations skip.
    "anchor" is the main loop of FlashAttention-2 (SM80) or 3 (SM90), which executes all of its instructions in every
    iteration. A loop is masked where it compares or selects about once per score.

    A set without --target is that of every family: compiled for sm_80 and for sm_90a.

    The second table splits what every iteration of the main loop executes, beside the anchor's where it is known.
    """
    from attnsmith.tools.inspect import inspect_kernels

    facts = []
    for target, specs in _kernels(selection).items():
        with progress_bar(f"inspect {target}", is_quiet=is_quiet()) as report:
            facts += inspect_kernels(specs, target, jobs=jobs, progress=report)
    if as_json:
        click.echo(json.dumps([fact.to_dict() for fact in facts], indent=2))
    else:
        click.echo(_table([_TITLES, *(_row(fact) for fact in facts)]))
        split = [row for fact in facts for row in _split_rows(fact)]
        if split:
            click.echo("\n" + _table([_SPLIT_TITLES, *split]))
        _footer(facts)


def _kernels(selection: Any) -> dict[str, Any]:
    """Target -> specs. A set without a target is every family's, as far as the other options leave kernels of it."""
    from attnsmith.codegen.errors import SpecError
    from attnsmith.codegen.resources import TARGETS

    source = click.get_current_context().get_parameter_source("target")
    if selection.set_name is None or source is not click.core.ParameterSource.DEFAULT:
        return {selection.target: selection.to_specs()}
    first_targets = {limits.archs[0]: target for target, limits in reversed(TARGETS.items())}
    found, refused = {}, None
    for target in sorted(first_targets.values()):
        try:
            found[target] = replace(selection, target=target).to_specs()
        except SpecError as error:
            refused = refused or error
    if not found and refused is not None:
        raise refused
    return found


_TITLES = ("kernel", "regs", "of", "spill B", "smem B", "main loop", "mma", "per score (all)", "anchor", "masked (all)",
           "faults")  # fmt: skip
_SPLIT_TITLES = ("per thread and key block", "mma", *SPLIT_NAMES, "all but mma")


def _per_score(loop: Any) -> str:
    return f"{loop.per_score_always:.1f} ({loop.per_score:.1f})" if loop else "-"


def _row(fact: Any) -> tuple[str, ...]:
    main = fact.main_loop
    masked = max((loop for loop in fact.loops if loop.is_masked), key=lambda loop: loop.tensor, default=None)
    return (
        fact.kernel,
        str(fact.registers),
        str(fact.registers_allowed),
        str(fact.spill_bytes),
        str(fact.smem_bytes),
        str(main.instructions) if main else "-",
        str(main.tensor) if main else "-",
        _per_score(main),
        f"{fact.anchor.per_score:.1f}" if fact.anchor else "-",
        _per_score(masked),
        str(len(fact.faults)),
    )


def _split_rows(fact: Any) -> list[tuple[str, ...]]:
    """The main loop's row and the anchor's; none where the anchor's split is not known."""
    main, anchor = fact.main_loop, fact.anchor
    if main is None or anchor is None or anchor.split is None:
        return []
    blocks = max(main.key_blocks, 1.0)

    def row(title: str, tensor: float, split: dict[str, int], divisor: float) -> tuple[str, ...]:
        counts = [tensor / divisor, *(split[name] / divisor for name in SPLIT_NAMES), sum(split.values()) / divisor]
        return (title, *(f"{count:.0f}" for count in counts))

    return [
        row(fact.kernel, main.tensor, main.split, blocks),
        row(f"  anchor {anchor.tile}", anchor.tensor, anchor.split, 1.0),
    ]


def _table(rows: list[tuple[str, ...]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
        cells[0] = row[0].ljust(widths[0])
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def _footer(facts: list[Any]) -> None:
    for fact in facts:
        for text in (*fact.remarks, *fact.faults):
            click.echo(f"{fact.kernel}: {text}", err=True)
    spilling = sum(fact.spill_bytes > 0 for fact in facts)
    click.echo(f"\n{len(facts)} kernels, {spilling} with spills", err=True)
    click.echo(
        "per score: non-tensor instructions that every iteration executes (all of the loop's, the rescale that most "
        "iterations skip included); anchor: FlashAttention-2 (SM80) or 3 (SM90), which skip nothing",
        err=True,
    )
