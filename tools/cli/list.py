# SPDX-License-Identifier: Apache-2.0
"""`attnsmith list`: the kernels of a selection with what they need and why they exist. Compiles nothing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import click
from attnsmith.tools.cli.selection import selection_options

_COLUMNS = (
    ("kernel", "name"),
    ("smem B", "smem_bytes"),
    ("regs~", "register_estimate"),
    ("CTAs/SM", "occupancy"),
    ("sq <=", "max_seqlen_q"),
    ("why", "reason"),
)


def kernel_rows(selection: Any) -> list[dict[str, Any]]:
    """One JSON-ready row per kernel: every spec field, the dispatch entry's fields and the estimated occupancy."""
    from attnsmith.codegen.dispatch import entry
    from attnsmith.codegen.resources import occupancy

    return [
        {**entry(spec, selection.target), "occupancy": occupancy(spec, selection.target)}
        for spec in selection.to_specs()
    ]


def _table(rows: Sequence[dict[str, Any]]) -> str:
    cells = [[title for title, _ in _COLUMNS]]
    cells += [["-" if row[field] is None else str(row[field]) for _, field in _COLUMNS] for row in rows]
    widths = [max(len(line[column]) for line in cells) for column in range(len(_COLUMNS))]
    lines = []
    for line in cells:
        padded = [
            cell.rjust(width) if 0 < column < len(widths) - 1 else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        lines.append("  ".join(padded).rstrip())
    return "\n".join(lines)


@click.command("list")
@selection_options
@click.option("--json", "as_json", is_flag=True, help="A JSON list with every field.")
def command(selection: Any, as_json: bool) -> None:
    """List kernels: shared memory, estimated registers and occupancy, and the reason for each tile.

    Without --set, every problem of the target with its default tiles. A head dim that has no kernel of its own lists
    the kernel that serves it.
    """
    rows = kernel_rows(selection)
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    click.echo(_table(rows))
    click.echo(f"\n{len(rows)} kernels for {selection.target}", err=True)
