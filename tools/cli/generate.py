# SPDX-License-Identifier: Apache-2.0
"""`attnsmith generate`: render a selection of kernels into a folder, or check that a folder is up to date."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
from attnsmith.tools.cli.selection import selection_options

EXIT_DIFFERS = 1


@click.command("generate")
@selection_options
@click.option(
    "--out",
    "out_dir",
    type=click.Path(path_type=Path),
    help="Folder to write; default: generated/ in a checkout, else the user's cache.",
)
@click.option("--check", is_flag=True, help="Write nothing; exit 1 if the folder differs from a fresh render.")
@click.option("--json", "as_json", is_flag=True, help="A JSON object: the folder and its kernels, or its differences.")
def command(selection: Any, out_dir: Path | None, check: bool, as_json: bool) -> None:
    """Render kernel sources (device code only), their manifest.json and the dispatch header.

    A file appears whole or not at all. Kernels of an earlier call that are not selected now are removed; other files
    in the folder stay.
    """
    from attnsmith.codegen.sources import default_output_dir

    folder = out_dir or default_output_dir()
    if check:
        _check(selection, folder, as_json)
    else:
        _write(selection, folder, as_json)


def _write(selection: Any, folder: Path, as_json: bool) -> None:
    from attnsmith.codegen.sources import write_folder

    specs = selection.to_specs()
    written = write_folder(specs, selection.target, folder)
    if as_json:
        result = {
            "out_dir": str(folder),
            "target": selection.target,
            "kernels": [
                {**spec.to_dict(), "file": str(path)} for spec, path in zip(specs, written.kernels, strict=True)
            ],
            "files": [str(path) for path in written.others],
            "removed": [str(path) for path in written.removed],
        }
        click.echo(json.dumps(result, indent=2))
        return
    for path in written.kernels:
        click.echo(str(path))
    removed = f", {len(written.removed)} of an earlier call removed" if written.removed else ""
    click.echo(f"{len(written.kernels)} kernels in {folder}{removed}", err=True)


def _check(selection: Any, folder: Path, as_json: bool) -> None:
    from attnsmith.codegen.sources import compare_folder

    problems = compare_folder(selection.to_specs(), selection.target, folder)
    if as_json:
        click.echo(json.dumps({"out_dir": str(folder), "ok": not problems, "differences": problems}, indent=2))
    else:
        for name, problem in problems.items():
            click.echo(f"{name}: {problem}")
        click.echo(f"{folder} differs: run attnsmith generate" if problems else f"{folder} is up to date", err=True)
    if problems:
        raise click.exceptions.Exit(EXIT_DIFFERS)
