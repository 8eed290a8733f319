# SPDX-License-Identifier: Apache-2.0
"""NVRTC on real sources: one pass gives cubin, PTX and log; errors carry the log; threads and processes agree."""

from __future__ import annotations

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from attnsmith.codegen.build import BuiltKernel, build_kernel, build_source
from attnsmith.codegen.cache import KernelCache
from attnsmith.codegen.compile.nvrtc import compile_source, supported_targets
from attnsmith.codegen.compile.worker import compile_source_apart
from attnsmith.codegen.errors import CompileError, SpecError, ToolchainError
from attnsmith.codegen.spec import KernelSpec
from attnsmith.codegen.toolchain import default_toolchain
from attnsmith.tools.inspect import parse_ptxas

FIRST_CALL_CPU_SECONDS = 10.0
CACHED_LOAD_SECONDS = 0.2


@pytest.mark.parametrize("target", ["sm_80", "sm_86", "sm_89", "sm_90", "sm_90a"])
def test_one_pass_gives_cubin_ptx_and_log(trivial_source: str, target: str) -> None:
    compiled = compile_source(trivial_source, "trivial", target=target)
    assert compiled.cubin.startswith(b"\x7fELF")
    assert f".target {target}" in compiled.ptx and ".entry trivial" in compiled.ptx
    assert 0 < parse_ptxas(compiled.log)["registers"] < 32
    assert compiled.cpu_seconds > 0


WGMMA = """
extern "C" __global__ void __launch_bounds__(128) wgmma(float* out, unsigned long long a, unsigned long long b) {
  float d[4] = {};
  asm volatile("wgmma.fence.sync.aligned;");
  asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0, %1, %2, %3}, %4, %5, 0, 1, 1, 0, 0;"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "l"(a), "l"(b));
  asm volatile("wgmma.commit_group.sync.aligned;\\nwgmma.wait_group.sync.aligned 0;" ::: "memory");
  for (int i = 0; i < 4; ++i) { out[threadIdx.x * 4 + i] = d[i]; }
}
"""


def test_hopper_instructions_need_the_suffixed_target() -> None:
    compiled = compile_source(WGMMA, "wgmma", target="sm_90a")
    assert ".target sm_90a" in compiled.ptx and "wgmma.mma_async" in compiled.ptx
    with pytest.raises(CompileError, match="wgmma for sm_90:"):
        compile_source(WGMMA, "wgmma", target="sm_90")


def test_compile_error_has_the_log_and_no_traceback_of_ours(trivial_source: str) -> None:
    with pytest.raises(CompileError) as caught:
        compile_source(trivial_source.replace("2.0f", "two"), "trivial", target="sm_80")
    assert 'identifier "two" is undefined' in str(caught.value)
    assert "trivial.cu(4)" in caught.value.log


def test_missing_entry_is_an_error(trivial_source: str) -> None:
    with pytest.raises(CompileError, match="no kernel named other"):
        compile_source(trivial_source, "other", target="sm_80")


def test_a_family_is_no_target(trivial_source: str) -> None:
    with pytest.raises(SpecError, match="sm_80"):
        compile_source(trivial_source, "trivial", target="sm80")


def test_target_that_nvrtc_does_not_know(trivial_source: str) -> None:
    with pytest.raises(CompileError, match="sm_99"):
        compile_source(trivial_source, "trivial", target="sm_99")
    assert 80 in supported_targets() and 99 not in supported_targets()


def test_threads(trivial_source: str) -> None:
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: compile_source(trivial_source, "trivial", target="sm_80"), range(8)))
    assert {result.cubin for result in results} == {results[0].cubin}


def test_a_process_of_its_own_gives_the_same(trivial_source: str) -> None:
    here = compile_source(trivial_source, "trivial", target="sm_80")
    there = compile_source_apart(trivial_source, "trivial", target="sm_80", toolchain=default_toolchain())
    assert (there.cubin, there.ptx) == (here.cubin, here.ptx)
    with pytest.raises(CompileError, match="two") as caught:
        compile_source_apart(
            trivial_source.replace("2.0f", "two"), "trivial", target="sm_80", toolchain=default_toolchain()
        )
    assert "trivial.cu(4)" in caught.value.log


def test_broken_nvrtc_is_named(trivial_source: str, tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace
    from pathlib import Path

    library = Path(str(tmp_path)) / "libnvrtc.so.13"
    library.write_bytes(b"not a library")
    toolchain = default_toolchain()
    broken = replace(toolchain, nvrtc=replace(toolchain.nvrtc, library=library, builtins=None))
    with pytest.raises(ToolchainError, match="ATTNSMITH_NVRTC"):
        compile_source(trivial_source, "trivial", target="sm_80", toolchain=broken)


def test_failed_source_is_kept(trivial_source: str, tmp_path: object) -> None:
    from pathlib import Path

    cache = KernelCache(Path(str(tmp_path)))
    source = trivial_source.replace("2.0f", "two")
    with pytest.raises(CompileError, match="failed"):
        build_source(source, "trivial", "sm_80", cache=cache)
    kept = list((cache.kernels.folder / "failed").glob("*.cu"))
    assert [path.read_text() for path in kept] == [source]


@pytest.fixture(scope="module")
def real_kernel(cold_cache: KernelCache, real_specs: tuple[KernelSpec, ...]) -> BuiltKernel:
    """The full bf16 D64 kernel, compiled in this session."""
    return build_kernel(real_specs[0], "sm_80", cache=cold_cache)


def test_first_build_of_a_real_kernel_is_within_its_budget(real_kernel: BuiltKernel) -> None:
    assert real_kernel.seconds < FIRST_CALL_CPU_SECONDS
    assert "mma.sync.aligned.m16n8k16" in real_kernel.ptx and "cp.async" in real_kernel.ptx
    assert f".entry {real_kernel.name}" in real_kernel.ptx


def test_ptx_carries_no_constants_of_foreign_headers(real_kernel: BuiltKernel) -> None:
    assert sum(line.startswith(".global") for line in real_kernel.ptx.splitlines()) < 20


def test_second_process_loads_it_fast(real_kernel: BuiltKernel, cold_cache: KernelCache) -> None:
    script = f"""
import pathlib, sys, time
import jinja2
from attnsmith.codegen.build import build_kernel
from attnsmith.codegen.cache import KernelCache
from attnsmith.codegen.registry import kernel_set
spec = next(s for s in kernel_set("minimal", "sm_80") if s.name == {real_kernel.name!r})
start = time.perf_counter()
built = build_kernel(spec, "sm_80", cache=KernelCache(pathlib.Path({str(cold_cache.root)!r})))
seconds = time.perf_counter() - start
assert built.was_cached and "torch" not in sys.modules
print(seconds)
"""
    runs = [
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True) for _ in range(3)
    ]
    assert min(float(run.stdout) for run in runs) < CACHED_LOAD_SECONDS


def test_changed_header_version_misses(real_kernel: BuiltKernel, cold_cache: KernelCache) -> None:
    """The key follows the toolchain: the entry is not found under another one's."""
    from dataclasses import replace

    from attnsmith.codegen.compile.nvrtc import flags
    from attnsmith.codegen.digest import kernel_digest
    from attnsmith.codegen.render import render

    assert real_kernel.spec is not None
    toolchain = default_toolchain()
    other = replace(toolchain, cutlass=replace(toolchain.cutlass, version="99.0.0"))
    source = render(real_kernel.spec)
    assert kernel_digest(source, "sm_80", toolchain, flags("sm_80")) == real_kernel.digest
    assert cold_cache.load(kernel_digest(source, "sm_80", other, flags("sm_80"))) is None


def test_cached_log_still_says_what_ptxas_said(real_kernel: BuiltKernel, cold_cache: KernelCache) -> None:
    start = time.process_time()
    assert real_kernel.spec is not None
    again = build_kernel(real_kernel.spec, "sm_80", cache=cold_cache)
    assert time.process_time() - start < 1.0
    assert again.was_cached and parse_ptxas(again.log) == parse_ptxas(real_kernel.log)
