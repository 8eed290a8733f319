# SPDX-License-Identifier: Apache-2.0
"""The AOT library of two real kernels: built by nvcc and ninja after an interruption, read back, cached."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from attnsmith.codegen import dispatch
from attnsmith.codegen.build import build_library
from attnsmith.codegen.cache import MANIFEST, KernelCache
from attnsmith.codegen.compile import extension
from attnsmith.codegen.compile.extension import LIBRARY_FILE, find_aot_toolchain, unit_groups
from attnsmith.codegen.compile.library import read_library
from attnsmith.codegen.errors import CacheError, CompileError, SpecError, ToolchainError
from attnsmith.codegen.registry import kernel_set
from attnsmith.codegen.spec import KernelSpec

try:
    find_aot_toolchain()
except ToolchainError as error:
    pytest.skip(f"no nvcc: {error}", allow_module_level=True)

_BUILD = """
import pathlib, sys
from attnsmith.codegen.build import build_library
from attnsmith.codegen.cache import KernelCache
from attnsmith.codegen.registry import kernel_set
names = sys.argv[2:]
specs = [spec for spec in kernel_set("minimal", "sm_80") if spec.name in names]
print(build_library(specs, "sm_80", cache=KernelCache(pathlib.Path(sys.argv[1]))))
"""


def killed_build(cache: KernelCache, specs: tuple[KernelSpec, ...]) -> Path:
    """Starts a build in its own session and kills all of it once a translation unit is compiled; returns its folder."""
    command = [sys.executable, "-c", _BUILD, str(cache.root), *(spec.name for spec in specs)]
    process = subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 240
        while time.monotonic() < deadline and process.poll() is None:
            logs = list((cache.libraries.folder / "tmp").glob("work-*/.ninja_log"))
            if logs and ".ptx" in logs[0].read_text():
                return logs[0].parent
            time.sleep(0.1)
        raise AssertionError("the build ended, or no unit was compiled in time")
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory, real_specs: tuple[KernelSpec, ...]) -> SimpleNamespace:
    """A library that was built in two attempts, the first one killed."""
    cache = KernelCache(tmp_path_factory.mktemp("aot cache"))
    folder = killed_build(cache, real_specs)
    compiled_before = {path.name: path.stat().st_mtime_ns for path in folder.glob("unit_*.ptx")}
    published_after_kill = cache.libraries.digests()
    steps: list[tuple[str, int, int]] = []
    path = build_library(real_specs, "sm_80", cache=cache, progress=lambda *step: steps.append(step))
    return SimpleNamespace(
        path=path,
        cache=cache,
        folder=folder,
        published_after_kill=published_after_kill,
        compiled_before=compiled_before,
        steps=steps,
    )


def test_killed_build_publishes_nothing_and_is_resumed(library: SimpleNamespace) -> None:
    assert library.published_after_kill == []
    assert library.compiled_before, "the first attempt had compiled a unit"
    assert not library.folder.exists(), "the finished build's folder is removed"
    recompiled = sum(message.startswith("compiled") for message, _, _ in library.steps)
    assert recompiled < 2, "the unit of the first attempt is not compiled again"


def test_progress_ends_at_the_total(library: SimpleNamespace) -> None:
    assert library.steps[-1][1] == library.steps[-1][2] == 5, "two units, two cubins, one link"


def test_table_has_every_kernel_with_its_images(library: SimpleNamespace, real_specs: tuple[KernelSpec, ...]) -> None:
    table = {desc.name.decode(): desc for desc in read_library(library.path)}
    assert set(table) == {spec.name for spec in real_specs}
    for spec in real_specs:
        desc, entry = table[spec.name], dispatch.entry(spec, "sm_80")
        assert (desc.packed_key, desc.target) == (dispatch.pack_key(spec.key), b"sm_80")
        assert (desc.block_m, desc.block_n) == (spec.tile.block_m, spec.tile.block_n)
        assert (desc.num_warps, desc.num_stages) == (spec.tile.num_warps, spec.tile.num_stages)
        assert (desc.smem_bytes, desc.num_threads) == (entry["smem_bytes"], entry["num_threads"])
        assert (desc.priority, desc.max_seqlen_q) == (entry["priority"], entry["max_seqlen_q"] or 0)
        assert desc.source == 1
        assert (desc.scheduler, desc.cluster_size, desc.ctas_per_sm) == (0, 1, entry["ctas_per_sm"])
        assert desc.cubin_image().startswith(b"\x7fELF")
        assert desc.ptx_text().count(".entry") == 1 and f".entry {spec.name}(" in desc.ptx_text()


def test_an_sm90_kernel_says_how_its_grid_is_sized(tmp_path: Path) -> None:
    (spec,) = (spec for spec in kernel_set("minimal", "sm_90a") if spec.name.startswith("fwd_sm90_fp16_hdim64_causal"))
    (desc,) = read_library(build_library([spec], "sm_90a", cache=KernelCache(tmp_path)))
    assert (desc.name.decode(), desc.target, desc.num_threads) == (spec.name, b"sm_90a", 512)
    assert (desc.scheduler, desc.cluster_size, desc.ctas_per_sm) == (2, 1, 1)
    assert ".target sm_90a" in desc.ptx_text() and "setmaxnreg" in desc.ptx_text()


def test_it_loads_without_torch_driver_or_cuda_runtime(library: SimpleNamespace) -> None:
    script = (
        "import sys; from pathlib import Path\n"
        "from attnsmith.codegen.compile.library import read_library\n"
        "print(len(list(read_library(Path(sys.argv[1])))))\n"
        "loaded = Path('/proc/self/maps').read_text()\n"
        "assert 'torch' not in sys.modules\n"
        "assert not any(name in loaded for name in ('libcuda', 'libtorch', 'libc10')), loaded\n"
    )
    run = subprocess.run([sys.executable, "-c", script, str(library.path)], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "2"


def test_second_build_is_a_hit(library: SimpleNamespace, real_specs: tuple[KernelSpec, ...]) -> None:
    start = time.monotonic()
    steps: list[object] = []
    again = build_library(real_specs, "sm_80", cache=library.cache, progress=lambda *step: steps.append(step))
    assert (again, steps) == (library.path, []) and time.monotonic() - start < 2.0


def test_manifest_describes_the_library(library: SimpleNamespace, real_specs: tuple[KernelSpec, ...]) -> None:
    manifest = json.loads((library.path.parent / MANIFEST).read_text())
    assert set(manifest["kernels"]) == {spec.name for spec in real_specs}
    assert all(seconds > 0 for seconds in manifest["kernels"].values())
    assert set(manifest["versions"]) == {"nvcc", "host_compiler", "cuda", "cccl", "cutlass"}
    assert LIBRARY_FILE in manifest["files"]
    assert (library.path.parent / "build.log").read_text().count("registers") == 2


def test_source_that_does_not_compile(
    tmp_path: Path, real_specs: tuple[KernelSpec, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extension, "render", lambda spec: f"__global__ void {spec.name}() {{ undeclared = 1; }}\n")
    cache = KernelCache(tmp_path)
    with pytest.raises(CompileError, match='identifier "undeclared" is undefined') as caught:
        build_library(real_specs[:1], "sm_80", cache=cache)
    assert "undeclared" in caught.value.log
    assert list((cache.libraries.folder / "failed").glob("library-sm_80-*.log"))
    assert cache.libraries.digests() == []


def test_library_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "broken.so").write_bytes(b"\x7fELF truncated")
    with pytest.raises(CacheError, match="Build it again"):
        list(read_library(tmp_path / "broken.so"))


def test_nothing_to_build() -> None:
    with pytest.raises(SpecError, match="no kernels"):
        build_library([], "sm_80")


@pytest.mark.parametrize(
    ("num_kernels", "jobs", "sizes"), [(1, 8, [1]), (2, 2, [1, 1]), (8, 2, [4, 4]), (9, 2, [3, 3, 3]), (4, 1, [4])]
)
def test_units_share_headers_but_leave_no_job_idle(
    real_specs: tuple[KernelSpec, ...], num_kernels: int, jobs: int, sizes: list[int]
) -> None:
    assert [len(group) for group in unit_groups([real_specs[0]] * num_kernels, jobs)] == sizes
