# SPDX-License-Identifier: Apache-2.0
"""`attnsmith build`: compiles a selection into the cache (NVRTC) or into one library (nvcc), with progress."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
from attnsmith.tools.cli.progress import is_quiet, progress_bar
from attnsmith.tools.cli.selection import selection_options


@click.command("build")
@selection_options
@click.option("--jit/--aot", "is_jit", default=True, show_default=True,
              help="Single kernels by NVRTC, or one library by nvcc and ninja.")  # fmt: skip
@click.option("--jobs", type=click.IntRange(min=1), help="Compilers at once; default: by cores and free memory.")
@click.option("--json", "as_json", is_flag=True, help="A JSON object: what was built, where, and its seconds.")
def command(selection: Any, is_jit: bool, jobs: int | None, as_json: bool) -> None:
    """Compile kernels. What is already built costs nothing; an interrupted build is continued.

    Without --set, every problem of the target with its default tiles. --jit puts single kernels into the cache, where
    the first call finds them. --aot makes one library for attnsmith.load_library; it needs nvcc and a C++ compiler.
    """
    specs = selection.to_specs()
    build = _build_jit if is_jit else _build_aot
    with progress_bar("build", is_quiet=is_quiet()) as report:
        result = build(specs, selection.target, jobs, report)
    if as_json:
        click.echo(json.dumps(result, indent=2))
    else:
        _print(result)


def _build_jit(specs: Any, target: str, jobs: int | None, report: Any) -> dict[str, Any]:
    from attnsmith.codegen.build import build_kernels

    built = build_kernels(specs, target, jobs=jobs, progress=report)
    rows = [
        {
            "kernel": kernel.name,
            "digest": kernel.digest,
            "directory": str(kernel.directory) if kernel.directory else None,
            "seconds": round(kernel.seconds, 2),
            "was_cached": kernel.was_cached,
        }
        for kernel in built
    ]
    return {"target": target, "mode": "jit", "library": None, "kernels": rows}


def _build_aot(specs: Any, target: str, jobs: int | None, report: Any) -> dict[str, Any]:
    from attnsmith.codegen.build import build_library
    from attnsmith.codegen.cache import MANIFEST

    library: Path = build_library(specs, target, jobs=jobs, progress=report)
    manifest_path = library.parent / MANIFEST
    seconds = json.loads(manifest_path.read_bytes())["kernels"] if manifest_path.is_file() else {}
    rows = [{"kernel": spec.name, "seconds": seconds.get(spec.name)} for spec in specs]
    return {"target": target, "mode": "aot", "library": str(library), "kernels": rows}


def _print(result: dict[str, Any]) -> None:
    width = max(len(row["kernel"]) for row in result["kernels"])
    for row in result["kernels"]:
        seconds = "-" if row["seconds"] is None else f"{row['seconds']:.1f} s"
        click.echo(f"{row['kernel']:<{width}}  {seconds:>7}{'  cached' if row.get('was_cached') else ''}")
    if result["library"]:
        click.echo(result["library"])
    click.echo(f"\n{len(result['kernels'])} kernels for {result['target']}", err=True)
