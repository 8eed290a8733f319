# SPDX-License-Identifier: Apache-2.0
"""Every input of the cache key, changed once, changes the key; the place of an installation does not."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from attnsmith.codegen import digest
from attnsmith.codegen.digest import kernel_digest
from attnsmith.codegen.toolchain import Toolchain

SOURCE, TARGET, FLAGS = "__global__ void kernel();", "sm_80", ("-std=c++17", "-DNDEBUG")


def key(toolchain: Toolchain, source: str = SOURCE, target: str = TARGET, flags: tuple[str, ...] = FLAGS) -> str:
    """The digest of one kernel."""
    return kernel_digest(source, target, toolchain, flags)


def test_same_inputs_same_key(fake_toolchain: Toolchain) -> None:
    assert key(fake_toolchain) == key(fake_toolchain)
    assert len(key(fake_toolchain)) == 64


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"source": SOURCE + " "}, id="source"),
        pytest.param({"target": "sm_86"}, id="target"),
        pytest.param({"flags": (*FLAGS, "-G")}, id="flag added"),
        pytest.param({"flags": FLAGS[::-1]}, id="flag order"),
    ],
)
def test_arguments_change_the_key(fake_toolchain: Toolchain, change: dict[str, object]) -> None:
    assert key(fake_toolchain, **change) != key(fake_toolchain)  # type: ignore[arg-type]


@pytest.mark.parametrize("part", ["nvrtc", "cuda", "cccl", "cutlass"])
def test_versions_change_the_key(fake_toolchain: Toolchain, part: str) -> None:
    other = replace(fake_toolchain, **{part: replace(getattr(fake_toolchain, part), version="99.9")})
    assert key(other) != key(fake_toolchain)


def edit(include: Path) -> None:
    """One byte of a header."""
    (include / "attnsmith" / "params.hpp").write_text("struct FwdParams { };\n")


def add(include: Path) -> None:
    """A new header in a new folder."""
    (include / "attnsmith" / "sm80").mkdir()
    (include / "attnsmith" / "sm80" / "copy.hpp").write_text("")


def rename(include: Path) -> None:
    """The same content under another name."""
    (include / "attnsmith" / "params.hpp").rename(include / "attnsmith" / "parameters.hpp")


@pytest.mark.parametrize("change", [edit, add, rename])
def test_headers_of_ours_change_the_key(fake_toolchain: Toolchain, change: Callable[[Path], None]) -> None:
    before = key(fake_toolchain)
    change(fake_toolchain.attnsmith_include)
    assert key(fake_toolchain) != before


def test_format_changes_the_key(fake_toolchain: Toolchain, monkeypatch: pytest.MonkeyPatch) -> None:
    before = key(fake_toolchain)
    monkeypatch.setattr(digest, "FORMAT", digest.FORMAT + 1)
    assert key(fake_toolchain) != before


def test_the_place_of_an_installation_does_not_matter(fake_toolchain: Toolchain, tmp_path: Path) -> None:
    moved = tmp_path / "elsewhere"
    shutil.copytree(fake_toolchain.attnsmith_include, moved)
    cuda = replace(fake_toolchain.cuda, path=tmp_path / "other cuda")
    assert key(replace(fake_toolchain, attnsmith_include=moved, cuda=cuda)) == key(fake_toolchain)


def test_files_that_are_no_headers_do_not_matter(fake_toolchain: Toolchain) -> None:
    before = key(fake_toolchain)
    (fake_toolchain.attnsmith_include / "attnsmith" / "params.hpp~").write_text("backup")
    assert key(fake_toolchain) == before
