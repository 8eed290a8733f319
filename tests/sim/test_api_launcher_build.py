# SPDX-License-Identifier: Apache-2.0
"""Building the launcher: once per machine, in any folder, by one of many processes, and with clear failures."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

LOAD = "from attnsmith import launcher; print(len(launcher.load().dispatch_table()))"


def start(cache: Path, **environment: str) -> subprocess.Popen[str]:
    values = {**os.environ, "ATTNSMITH_CACHE_DIR": str(cache), **environment}
    return subprocess.Popen(
        [sys.executable, "-c", LOAD], env=values, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def load(cache: Path, **environment: str) -> tuple[int, str]:
    process = start(cache, **environment)
    _, errors = process.communicate(timeout=300)
    return process.returncode, errors


def library(cache: Path) -> Path:
    (path,) = (cache / "launcher").glob("*/attnsmith_launcher.so")
    return path


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A cache whose path has a space and a $, filled by two processes at once; and what they printed."""
    cache = tmp_path_factory.mktemp("launcher") / "a b" / "c$d"
    processes = [start(cache), start(cache)]
    results = [process.communicate(timeout=300) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], results
    return cache, [errors for _, errors in results]


def test_two_processes_build_once_and_show_progress(built: tuple[Path, list[str]]) -> None:
    cache, printed = built
    text = "".join(printed)
    assert text.count("building the launcher") == 1 and text.count("built the launcher") == 1
    assert library(cache).exists()
    assert not list((cache / "launcher" / "tmp").glob("*"))


def test_a_later_process_builds_nothing_even_without_a_compiler(built: tuple[Path, list[str]]) -> None:
    status, errors = load(built[0], PATH="/nonexistent")
    assert status == 0 and "building" not in errors


def test_a_damaged_library_is_rebuilt(built: tuple[Path, list[str]]) -> None:
    path = library(built[0])
    path.write_bytes(path.read_bytes()[:1000])
    status, errors = load(built[0])
    assert status == 0 and "building the launcher" in errors
    assert load(built[0]) == (0, "")


def test_no_compiler_is_a_clear_error(tmp_path: Path) -> None:
    status, errors = load(tmp_path, PATH="/nonexistent")
    assert status != 0 and "find a C++ compiler" in errors and "Install g++" in errors


def test_the_compiler_may_have_arguments(tmp_path: Path) -> None:
    status, errors = load(tmp_path, CXX="g++ -DATTNSMITH_TEST_ARGUMENT")
    assert status == 0 and "building the launcher with g++ -DATTNSMITH_TEST_ARGUMENT" in errors


def test_a_failing_compiler_is_named_with_its_first_error(tmp_path: Path) -> None:
    compiler = tmp_path / "cxx"
    compiler.write_text("#!/bin/sh\n[ \"$1\" = --version ] && exec g++ --version\necho 'error: planted' >&2\nexit 1\n")
    compiler.chmod(0o755)
    status, errors = load(tmp_path / "cache", CXX=str(compiler))
    assert status != 0 and "build the attnsmith launcher: got error: planted" in errors


def test_a_program_that_is_no_compiler_is_a_clear_error(tmp_path: Path) -> None:
    status, errors = load(tmp_path / "cache", CXX="false")
    assert status != 0 and "build the attnsmith launcher: got " in errors and "CompileError" in errors


def test_an_unusable_cache_costs_a_warning(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    status, errors = load(tmp_path / "file")
    assert status == 0 and "for this process only" in errors
