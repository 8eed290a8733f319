# SPDX-License-Identifier: Apache-2.0
"""A folder of generated sources: the kernels of a set, their manifest and the dispatch header; written and compared.

Not responsible for rendering (render.py) or for what is in a set (registry.py).
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import attnsmith.codegen
from attnsmith.codegen.dispatch import manifest, render_dispatch_header
from attnsmith.codegen.render import render, source_name, write_texts
from attnsmith.codegen.spec import KernelSpec

MANIFEST_NAME = "manifest.json"
DISPATCH_HEADER_NAME = "dispatch_table.inc"


@dataclass(frozen=True)
class Written:
    """What `write_folder` did, as paths."""

    kernels: tuple[Path, ...]
    others: tuple[Path, ...]
    removed: tuple[Path, ...]


def checkout_dir() -> Path | None:
    """The root of the source checkout that this package runs from; None for an installed package."""
    root = Path(attnsmith.codegen.__path__[0]).resolve().parent
    return root if (root / "pyproject.toml").is_file() and (root / "generated").is_dir() else None


def default_output_dir() -> Path:
    """generated/ in a checkout that can be written to, else a folder of the user's cache; never the installation."""
    root = checkout_dir()
    if root is not None and os.access(root / "generated", os.W_OK):
        return root / "generated"
    chosen = os.environ.get("ATTNSMITH_CACHE_DIR")
    if chosen:
        return Path(chosen) / "generated"
    from platformdirs import user_cache_path

    return user_cache_path("attnsmith", appauthor=False) / "generated"


def folder_texts(specs: Sequence[KernelSpec], target: str) -> dict[str, str]:
    """File name -> text of everything that a generated folder holds for `specs`."""
    texts = {source_name(spec): render(spec) for spec in specs}
    texts[DISPATCH_HEADER_NAME] = render_dispatch_header()
    texts[MANIFEST_NAME] = json.dumps(manifest(specs, target), indent=2) + "\n"
    return texts


def write_folder(specs: Sequence[KernelSpec], target: str, out_dir: Path) -> Written:
    """Make `out_dir` hold exactly `specs`. Kernels that an earlier call put there and that are not in `specs` go;
    other files stay.

    Raises:
        AttnsmithError: the folder cannot be made or written to.
    """
    texts = folder_texts(specs, target)
    stale = [out_dir / name for name in sorted(_listed(out_dir) - set(texts)) if (out_dir / name).is_file()]
    paths = {path.name: path for path in write_texts(texts, out_dir)}
    for path in stale:
        path.unlink()
    kernels = tuple(paths.pop(source_name(spec)) for spec in specs)
    return Written(kernels, tuple(paths.values()), tuple(stale))


def compare_folder(specs: Sequence[KernelSpec], target: str, out_dir: Path) -> dict[str, str]:
    """How `out_dir` differs from what `write_folder` would make: file name -> "missing", "differs" or "stale"."""
    texts = folder_texts(specs, target)
    problems: dict[str, str] = {}
    for name, text in texts.items():
        path = out_dir / name
        if not path.is_file():
            problems[name] = "missing"
        elif path.read_bytes() != text.encode():
            problems[name] = "differs"
    for name in sorted(_listed(out_dir) - set(texts)):
        if (out_dir / name).is_file():
            problems[name] = "stale"
    return problems


def _listed(out_dir: Path) -> set[str]:
    """Source names that the folder's manifest lists; empty when there is none or it is damaged."""
    try:
        kernels = json.loads((out_dir / MANIFEST_NAME).read_text(encoding="utf-8"))["kernels"]
        names = {str(KernelSpec.from_dict(row).name) for row in kernels}
    except (OSError, ValueError, KeyError, TypeError):
        return set()
    return {f"{name}.cu" for name in names}
