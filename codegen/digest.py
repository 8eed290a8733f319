# SPDX-License-Identifier: Apache-2.0
"""The cache key: what a compiled kernel or library depends on, hashed. Not responsible for storage (cache.py).

Covers the rendered source, the content of every header of ours, the target, the compiler's and foreign headers'
versions, and the flags. Not covered on purpose: where these are installed, and who builds.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from attnsmith.codegen.toolchain import Toolchain

FORMAT = 1
"""Raise when a cache entry's files change meaning."""


def header_digest(include: Path) -> str:
    """sha256 over the names and contents of all headers below `include`."""
    total = hashlib.sha256()
    for path in sorted(path for path in include.rglob("*") if path.suffix in (".hpp", ".h", ".cuh", ".inc")):
        content = path.read_bytes()
        total.update(f"{path.relative_to(include).as_posix()}\0{len(content)}\0".encode())
        total.update(content)
    return total.hexdigest()


def kernel_digest(source: str, target: str, toolchain: Toolchain, flags: Sequence[str]) -> str:
    """The key of one kernel: 64 hexadecimal digits. `flags` without include folders."""
    return library_digest({"kernel": source}, target, toolchain.identity(), toolchain.attnsmith_include, flags)


def library_digest(
    sources: Mapping[str, str], target: str, versions: Mapping[str, str], include: Path, flags: Sequence[str]
) -> str:
    """The key of a set of sources, by name; `versions` of everything foreign that takes part."""
    parts = {
        "format": FORMAT,
        "sources": dict(sources),
        "headers": header_digest(include),
        "target": target,
        "versions": dict(versions),
        "flags": list(flags),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
