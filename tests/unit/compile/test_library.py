# SPDX-License-Identifier: Apache-2.0
"""AOT libraries that are no longer what was built: refused before the loader maps them, which could kill the process.

A shared library that Python itself brings stands in for one of kernels: the check is of the file, not of its table.
"""

from __future__ import annotations

import _ctypes
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from attnsmith.codegen.cache import DirectoryCache
from attnsmith.codegen.compile.library import TABLE_VERSION, KernelDesc, read_library, table_source
from attnsmith.codegen.dispatch import entry
from attnsmith.codegen.errors import CacheError
from attnsmith.codegen.registry import kernel_set
from attnsmith.codegen.render import include_dir
from attnsmith.codegen.spec import Scheduler

DIGEST = "d" * 64

HEADER = include_dir() / "attnsmith" / "kernel_desc.hpp"


def test_the_structs_are_the_headers() -> None:
    """Field names and their order; sizes follow from the types, which a compiled library's test checks."""
    text = re.sub(r"/\*.*?\*/", "", HEADER.read_text(encoding="utf-8"), flags=re.DOTALL)
    body = text[text.index("typedef struct {") : text.index("} attnsmith_kernel_desc;")]
    names = [name for line in re.findall(r"^\s+[\w ]+?\*?\s(\w+(?:, \w+)*);", body, flags=re.MULTILINE)
             for name in line.split(", ")]  # fmt: skip
    assert names == [name for name, _ in KernelDesc._fields_]
    assert f"ATTNSMITH_KERNEL_TABLE_VERSION {TABLE_VERSION}\n" in text


@pytest.mark.parametrize("scheduler", Scheduler)
def test_a_table_row_ends_with_how_the_grid_is_sized(scheduler: Scheduler) -> None:
    spec = next(spec for spec in kernel_set("default", "sm_90a") if spec.tile.scheduler is scheduler)
    row = table_source([entry(spec, "sm_90a")])
    expected = {Scheduler.SINGLE: (0, 1, 2), Scheduler.STATIC: (1, 1, 1), Scheduler.DYNAMIC: (2, 1, 1)}[scheduler]
    assert f"attnsmith_ptx_0), {', '.join(map(str, expected))}}},\n" in row


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """A whole shared library outside any cache."""
    path = tmp_path / "library.so"
    path.write_bytes(Path(_ctypes.__file__).read_bytes())
    return path


def test_a_whole_library_reaches_the_loader(library: Path) -> None:
    with pytest.raises(CacheError, match="undefined symbol: attnsmith_kernels"):
        list(read_library(library))


@pytest.mark.parametrize("left", [0.999, 0.5, 0.1])
def test_a_library_that_was_cut_off_is_refused(library: Path, left: float) -> None:
    content = library.read_bytes()
    library.write_bytes(content[: int(len(content) * left)])
    with pytest.raises(CacheError, match=rf"of {len(content)} bytes: it was cut off"):
        list(read_library(library))


@pytest.mark.parametrize("size", [0, 3, 63, 64])
def test_less_than_a_header_is_refused(library: Path, size: int) -> None:
    library.write_bytes(library.read_bytes()[:size])
    with pytest.raises(CacheError):
        list(read_library(library))


def test_a_changed_byte_in_a_cache_entry_is_refused(library: Path, tmp_path: Path) -> None:
    entry = DirectoryCache(tmp_path / "libraries").publish(DIGEST, {"library.so": library.read_bytes()}, {})
    content = bytearray((entry / "library.so").read_bytes())
    content[len(content) // 2] ^= 1
    (entry / "library.so").write_bytes(content)
    with pytest.raises(CacheError, match="manifest"):
        list(read_library(entry / "library.so"))


def no_file(path: Path) -> None:
    """Nothing there."""
    path.unlink()


def folder(path: Path) -> None:
    """A folder."""
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("damage", [no_file, folder])
def test_what_cannot_be_read_is_refused(library: Path, damage: Callable[[Path], None]) -> None:
    damage(library)
    with pytest.raises(CacheError, match=r"load kernels of .*library\.so"):
        list(read_library(library))
