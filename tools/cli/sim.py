# SPDX-License-Identifier: Apache-2.0
"""`attnsmith sim`: what a PTX file holds and whether the simulator can run it. Not responsible for running it: a launch
needs memory, which Python code has (attnsmith.tools.ptxsim)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import click
from attnsmith.codegen.errors import AttnsmithError
from attnsmith.tools import ptxsim
from attnsmith.tools.ptxsim.devices import devices


@click.command(name="sim")
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option("--list", "list_entries", is_flag=True, help="Describe the kernels in FILE (the default).")
@click.option("--devices", "list_devices", is_flag=True, help="List the devices that can be simulated.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(file: Path | None, list_entries: bool, list_devices: bool, as_json: bool) -> None:
    """Describe a PTX FILE: kernels, parameters, registers, shared memory, instructions that cannot be simulated.

    Exits 0 if the simulator can run every kernel in it, 1 if an instruction is unsupported, 2 if FILE is missing or is
    not PTX.

    \b
    Example:
      attnsmith sim kernel.ptx --list
    """
    try:
        if list_devices:
            _print_devices(devices(), as_json)
            if file is None:
                return
        if file is None:
            raise click.UsageError("Name a PTX file, or pass --devices.")
        module = _parse(file)
    except AttnsmithError as error:
        click.echo(f"error: {error}", err=True)
        raise click.exceptions.Exit(2) from None
    with module:
        click.echo(json.dumps(describe(module), indent=2) if as_json else _text(module))
        raise click.exceptions.Exit(1 if module.unsupported else 0)


def describe(module: ptxsim.Module) -> dict[str, Any]:
    """Facts of a module as plain JSON values."""
    return {
        "version": module.version,
        "target": module.target,
        "entries": [
            {
                "name": entry.name,
                "params": [dict(parameter) for parameter in entry.params],
                "param_bytes": sum(int(parameter["size"]) for parameter in entry.params),
                "registers": dict(entry.registers),
                "static_smem": entry.static_smem,
                "reqntid": entry.reqntid,
                "maxntid": entry.maxntid,
                "instructions": entry.instructions,
            }
            for entry in module.entries
        ],
        "unsupported": [dict(item) for item in module.unsupported],
    }


def _parse(file: Path) -> ptxsim.Module:
    try:
        return ptxsim.parse(file)
    except OSError as error:
        raise AttnsmithError(
            asked=f"read {file}",
            got=error.strerror or str(error),
            allowed="a readable PTX text file",
            do="Correct the path; `attnsmith generate` and NVRTC, nvcc -ptx or Triton write such files.",
        ) from None
    except ptxsim.PtxSimError as error:
        where = f" line {error.line}" if error.line else ""
        raise AttnsmithError(
            asked=f"parse {file}{where}",
            got=error.message,
            allowed="PTX text of ISA 7.8 to 9.0",
            do="Pass the text of a module (.ptx), not a cubin, fatbin or CUDA source.",
        ) from None


def _text(module: ptxsim.Module) -> str:
    lines = [f"PTX {module.version}, target {module.target}, kernels: {len(module.entries)}"]
    for entry in module.entries:
        lines += ["", entry.name, f"  instructions   {entry.instructions}", f"  static smem    {entry.static_smem} B"]
        lines.append(f"  registers      {_counts(entry.registers)}")
        for label, extents in (("block must be", entry.reqntid), ("block at most", entry.maxntid)):
            if extents:
                lines.append(f"  {label:<14} {' x '.join(map(str, extents))}")
        lines += _table(("parameter", "bytes", "align"), ((p["name"], p["size"], p["align"]) for p in entry.params))
    if module.unsupported:
        lines += ["", f"cannot be simulated: {len(module.unsupported)} instructions"]
        lines += [f"  line {u.get('line')}: {u.get('text')}  ({u.get('reason')})" for u in module.unsupported]
    else:
        lines += ["", "every instruction can be simulated"]
    return "\n".join(lines)


def _counts(registers: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in registers.items() if count) or "none"


def _table(header: tuple[str, ...], rows: Iterable[tuple[Any, ...]]) -> list[str]:
    cells = [header, *(tuple(map(str, row)) for row in rows)]
    if len(cells) == 1:
        return []
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    return [
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells
    ]


def _print_devices(table: Mapping[str, Mapping[str, Any]], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({name: dict(facts) for name, facts in table.items()}, indent=2))
        return
    columns = ["name", *dict.fromkeys(key for facts in table.values() for key in facts if key != "name")]
    rows = [tuple(facts.get(column, "") for column in columns) for facts in table.values()]
    click.echo("\n".join(line[2:] for line in _table(tuple(columns), rows)))
