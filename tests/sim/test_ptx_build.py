# SPDX-License-Identifier: Apache-2.0
"""How the simulator's core gets compiled and cached: digest, locking, damage, read-only folders, failures.

A tiny source stands in for the core, so that a case takes a moment.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from attnsmith.codegen.errors import CompileError
from attnsmith.tools.ptxsim import build


@pytest.fixture(autouse=True)
def small_core(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Two translation units with one function, an own cache."""
    source = tmp_path / "csrc"
    source.mkdir()
    (source / "one.cpp").write_text('#include "two.hpp"\nextern "C" int answer() { return two() + 40; }\n')
    (source / "two.cpp").write_text('#include "two.hpp"\nint two() { return 2; }\n')
    (source / "two.hpp").write_text("int two();\n")
    monkeypatch.setattr(build, "SOURCE_DIR", source)
    monkeypatch.setattr(build, "FLAGS", ("-O0", "-fPIC"))
    monkeypatch.setenv("ATTNSMITH_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("CXX", raising=False)
    build._library_path.cache_clear()
    yield source
    build._library_path.cache_clear()


def answer(path: Path) -> int:
    return int(ctypes.CDLL(str(path)).answer())


def test_builds_into_the_cache_and_finds_it_again(tmp_path: Path) -> None:
    path = build.library_path()
    assert path.is_relative_to(tmp_path / "cache" / "ptxsim")
    assert answer(path) == 42
    modified = path.stat().st_mtime_ns
    build._library_path.cache_clear()
    assert build.library_path() == path
    assert path.stat().st_mtime_ns == modified
    assert sorted(p.name for p in path.parent.iterdir()) == ["libptxsim.sha256", "libptxsim.so"]


def test_default_cache_is_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ATTNSMITH_CACHE_DIR")
    assert build.cache_root().parts[-2:] == ("attnsmith", "ptxsim")


@pytest.mark.parametrize("change", ["source", "header", "new file", "flags", "processor", "compiler"])
def test_every_input_changes_the_digest(change: str, small_core: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = build.digest()
    if change == "source":
        (small_core / "one.cpp").write_text((small_core / "one.cpp").read_text() + "\n")
    elif change == "header":
        (small_core / "two.hpp").write_text("int two(); // changed\n")
    elif change == "new file":
        (small_core / "three.cpp").write_text("")
    elif change == "flags":
        monkeypatch.setattr(build, "FLAGS", ("-O1", "-fPIC"))
    elif change == "processor":
        monkeypatch.setattr(build, "cpu_features", lambda: "another machine")
    else:
        monkeypatch.setattr(build, "compiler_version", lambda compiler: "another compiler")
    assert build.digest() != before


@pytest.mark.parametrize("damage", ["truncated", "no checksum", "no library"])
def test_damaged_entry_is_rebuilt(damage: str) -> None:
    path = build.library_path()
    if damage == "truncated":
        path.write_bytes(path.read_bytes()[:100])
    elif damage == "no checksum":
        path.with_suffix(".sha256").unlink()
    else:
        path.unlink()
    build._library_path.cache_clear()
    assert build.is_intact(build.library_path())
    assert not [p for p in path.parent.parent.iterdir() if p.name.startswith(".")]


def test_cache_that_cannot_be_written_falls_back_to_a_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    monkeypatch.setenv("ATTNSMITH_CACHE_DIR", str(blocked / "cache"))
    path = build.library_path()
    assert answer(path) == 42
    assert not path.is_relative_to(blocked)
    assert "this process only" in caplog.text
    assert build.library_path() == path  # not built again


def test_full_cache_costs_no_second_build_and_keeps_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fill(source: Path, target: Path) -> None:
        target.mkdir()
        (target / "half").write_text("written before the disk was full")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    compiled: list[str] = []
    run = build._run
    monkeypatch.setattr(build, "_run", lambda command: (compiled.append(command[-1]), run(command)))
    monkeypatch.setattr("shutil.copytree", fill)
    assert answer(build.library_path()) == 42
    assert "No space left" in caplog.text
    assert len(compiled) == 3  # two units and the link
    assert [p for p in (tmp_path / "cache" / "ptxsim").iterdir() if p.suffix != ".lock"] == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_read_only_cache(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    cache.chmod(stat.S_IRUSR | stat.S_IXUSR)
    assert answer(build.library_path()) == 42


def test_missing_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler-anywhere")
    with pytest.raises(CompileError, match=r"no-such-compiler-anywhere.*Install"):
        build.library_path()


def test_failure_carries_the_log_and_leaves_nothing(small_core: Path, tmp_path: Path) -> None:
    (small_core / "two.cpp").write_text("int two() { return undeclared_name; }\n")
    with pytest.raises(CompileError, match="undeclared_name") as caught:
        build.library_path()
    assert "two.cpp" in caught.value.log
    assert [p for p in (tmp_path / "cache" / "ptxsim").iterdir() if p.suffix != ".lock"] == []
    (small_core / "two.cpp").write_text('#include "two.hpp"\nint two() { return 2; }\n')
    assert answer(build.library_path()) == 42


def test_installation_without_sources(small_core: Path) -> None:
    for path in small_core.iterdir():
        path.unlink()
    with pytest.raises(CompileError, match="Reinstall"):
        build.library_path()


def test_processes_that_build_at_once_share_one_library(small_core: Path, tmp_path: Path) -> None:
    code = (
        "from pathlib import Path; from attnsmith.tools.ptxsim import build;"
        f"build.SOURCE_DIR = Path({str(small_core)!r}); build.FLAGS = ('-O0', '-fPIC'); print(build.library_path())"
    )
    running = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(3)]
    paths = {process.communicate()[0].strip() for process in running}
    assert all(process.returncode == 0 for process in running)
    assert len(paths) == 1
    assert answer(Path(paths.pop())) == 42
