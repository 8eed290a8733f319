# SPDX-License-Identifier: Apache-2.0
"""build_source around a compiler that only counts: hits, damage, two processes, unusable caches, failures."""

from __future__ import annotations

import errno
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from attnsmith.codegen import build, cache
from attnsmith.codegen.build import BuiltKernel, build_kernel, build_source
from attnsmith.codegen.cache import KernelCache
from attnsmith.codegen.compile.nvrtc import CompiledKernel
from attnsmith.codegen.errors import CompileError, SpecError
from attnsmith.codegen.spec import Arch, DType, KernelSpec, Mask, ProblemKey, TileConfig
from attnsmith.codegen.toolchain import Toolchain


class CountingCompiler:
    """Stands for nvrtc.compile_source."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, source: str, name: str, **_: Any) -> CompiledKernel:
        self.calls += 1
        if "error" in source:
            raise CompileError(
                asked=f"compile {name}", got="1 error", allowed="none", do="Fix it.", log="line 1: error"
            )
        return CompiledKernel(cubin=b"\x7fELF" + source.encode(), ptx=f"// {source}", log="ptxas info", cpu_seconds=1.5)


Build = Callable[..., BuiltKernel]


@pytest.fixture
def compiler() -> CountingCompiler:
    """Counts its calls."""
    return CountingCompiler()


@pytest.fixture
def do_build(compiler: CountingCompiler, fake_toolchain: Toolchain, tmp_path: Path) -> Build:
    """`do_build(source="x", root=...)`."""

    def run(source: str = "kernel", root: Path = tmp_path / "cache", **options: Any) -> BuiltKernel:
        return build_source(
            source,
            "kernel",
            "sm_80",
            cache=KernelCache(root),
            toolchain=fake_toolchain,
            compile_source=compiler,
            **options,
        )

    return run


def test_second_build_is_a_hit_with_the_same_result(do_build: Build, compiler: CountingCompiler) -> None:
    first, second = do_build(), do_build()
    assert compiler.calls == 1
    assert (first.was_cached, second.was_cached) == (False, True)
    assert (second.cubin, second.ptx, second.log, second.seconds) == (first.cubin, first.ptx, first.log, 1.5)
    assert second.directory == first.directory and second.directory is not None
    assert {path.name for path in second.directory.iterdir()} == {
        "kernel.cu", "kernel.cubin", "kernel.ptx", "kernel.log", "manifest.json",
    }  # fmt: skip


def test_a_change_of_source_or_flags_compiles_again(do_build: Build, compiler: CountingCompiler) -> None:
    digests = {do_build("a").digest, do_build("b").digest, do_build("a", extra_flags=("-G",)).digest}
    assert len(digests) == 3 and compiler.calls == 3


@pytest.mark.parametrize("file_name", ["kernel.cubin", "kernel.ptx", "manifest.json"])
def test_truncated_entry_is_rebuilt_once(do_build: Build, compiler: CountingCompiler, file_name: str) -> None:
    built = do_build()
    assert built.directory is not None
    path = built.directory / file_name
    path.write_bytes(path.read_bytes()[:7])
    again = do_build()
    assert (again.was_cached, again.cubin) == (False, built.cubin)
    assert do_build().was_cached
    assert compiler.calls == 2


def test_progress_says_what_and_when_done(do_build: Build) -> None:
    reports: list[tuple[str, int, int]] = []
    do_build(progress=lambda *report: reports.append(report))
    do_build(progress=lambda *report: reports.append(report))
    assert [(done, total) for _, done, total in reports] == [(0, 1), (1, 1)]
    assert "compiling kernel for sm_80" in reports[0][0] and "1.5 s of CPU" in reports[1][0]


def test_unusable_root_warns_and_serves_from_memory(
    do_build: Build, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    built = do_build(root=tmp_path / "file")
    assert built.cubin == b"\x7fELFkernel" and built.directory is None
    assert "used from memory" in caplog.text


def test_full_disk_warns_and_serves_from_memory(
    do_build: Build, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(cache, "_place", full)
    built = do_build()
    assert built.cubin == b"\x7fELFkernel" and built.directory is None
    assert "No space left" in caplog.text
    monkeypatch.undo()
    assert not do_build().was_cached, "nothing half-written may be taken for an entry"


def test_read_only_file_system_warns_and_serves_from_memory(
    do_build: Build, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def read_only(*_: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(cache, "_make_folder", read_only)
    assert do_build().cubin == b"\x7fELFkernel"
    assert caplog.text.count("Read-only file system") == 2, "one warning for the lock, one for the entry"


def test_failure_keeps_source_and_log_and_stores_nothing(do_build: Build, tmp_path: Path) -> None:
    with pytest.raises(CompileError, match="failed") as caught:
        do_build("error here")
    assert caught.value.log == "line 1: error"
    failed = tmp_path / "cache" / "kernels" / "failed"
    assert {path.suffix: path.read_text() for path in failed.iterdir()} == {
        ".cu": "error here", ".log": "line 1: error",
    }  # fmt: skip
    assert str(failed) in str(caught.value)
    assert KernelCache(tmp_path / "cache").kernels.digests() == []


def test_failure_with_an_unusable_cache_is_still_the_compilers(do_build: Build, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CompileError, match="Fix it"):
        do_build("error here", root=tmp_path / "file")


def test_two_processes_compile_once(tmp_path: Path, fake_toolchain: Toolchain) -> None:
    """Real processes that start together; the compiler sleeps, and appends a line when it runs."""
    script = tmp_path / "build_one.py"
    script.write_text(
        "import pathlib, pickle, sys, time\n"
        "from attnsmith.codegen.build import build_source\n"
        "from attnsmith.codegen.cache import KernelCache\n"
        "from attnsmith.codegen.compile.nvrtc import CompiledKernel\n"
        "root = pathlib.Path(sys.argv[1])\n"
        "def slow(source, name, **_):\n"
        "    with (root / 'calls').open('a') as stream:\n"
        "        stream.write('compiled\\n')\n"
        "    time.sleep(1.0)\n"
        "    return CompiledKernel(cubin=b'\\x7fELF', ptx='ptx', log='', cpu_seconds=1.0)\n"
        "toolchain = pickle.loads((root / 'toolchain').read_bytes())\n"
        "built = build_source('source', 'kernel', 'sm_80', cache=KernelCache(root / 'cache'),\n"
        "                     toolchain=toolchain, compile_source=slow)\n"
        "assert built.cubin == b'\\x7fELF' and built.directory.is_dir()\n"
        "print(built.was_cached)\n"
    )
    import pickle

    (tmp_path / "toolchain").write_bytes(pickle.dumps(fake_toolchain))
    command = [sys.executable, str(script), str(tmp_path)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    answers = sorted(process.communicate(timeout=60)[0].strip() for process in processes)
    assert answers == ["False", "True", "True"]
    assert (tmp_path / "calls").read_text() == "compiled\n"


def test_illegal_spec_is_refused_before_compiling(tmp_path: Path) -> None:
    key = ProblemKey(arch=Arch.SM80, dtype=DType.FP16, head_dim=256, head_dim_v=256, mask=Mask.FULL)
    spec = KernelSpec(key=key, tile=TileConfig(block_m=128, block_n=256, num_warps=8, num_stages=2))
    with pytest.raises(SpecError, match="shared memory"):
        build_kernel(spec, "sm_80", cache=KernelCache(tmp_path))


def test_info_log_is_the_progress_without_a_reporter(do_build: Build, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger=build.__name__):
        do_build()
    assert "compiling kernel for sm_80" in caplog.text
