# SPDX-License-Identifier: Apache-2.0
"""CUTLASS's CuTe tutorial sgemm_sm80 on the simulator: code that runs on hardware and that nobody here wrote.

cp.async pipelines, ldmatrix, mma.sync with swizzled shared memory (fp16) and plain FMA loops (fp32).
"""

from __future__ import annotations

import os
from pathlib import Path

import filelock
import numpy as np
import pytest
import torch
from attnsmith.codegen.compile.nvrtc import compile_source
from attnsmith.tools import ptxsim

from tests.sim.ptx.cute_tutorial import HGEMM_TN, SGEMM_NT, VARIANTS, Variant, source


@pytest.fixture(scope="module")
def ptx_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compiled once per test run, also when several xdist workers need it: CuTe's headers take their time."""
    base = tmp_path_factory.getbasetemp()
    shared = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "sgemm_sm80.ptx"
    with filelock.FileLock(f"{shared}.lock"):
        if not shared.exists():
            # Only the PTX is needed: ptxas need not optimize.
            compiled = compile_source(source(), HGEMM_TN.name, target="sm_80", extra_flags=["--ptxas-options=-O0"])
            shared.write_text(compiled.ptx)
    return shared


@pytest.fixture(scope="module")
def module(ptx_file: Path) -> ptxsim.Module:
    return ptxsim.load(ptx_file)


def info(module: ptxsim.Module, variant: Variant) -> tuple[int, int, int, int, int]:
    out = np.zeros(5, np.int32)
    module.launch(f"{variant.name}_info", 1, 1, [out])
    shared, threads, bm, bn, bk = out.tolist()
    return shared, threads, bm, bn, bk


def gemm(module: ptxsim.Module, variant: Variant, a: torch.Tensor, b: torch.Tensor, **launch: object) -> torch.Tensor:
    """C (m, n) = A (m, k) @ B (n, k)^T; A and B are passed in the variant's order, C is column-major."""
    shared, threads, bm, bn, _ = info(module, variant)
    (m, k), n = a.shape, b.shape[0]
    if variant is SGEMM_NT:  # m-major and n-major
        mem_a, mem_b, ld_a, ld_b = a.T.contiguous(), b.T.contiguous(), m, n
    else:
        mem_a, mem_b, ld_a, ld_b = a.contiguous(), b.contiguous(), k, k
    c = torch.full((n, m), float("nan"), dtype=a.dtype)
    args = [m, n, k, 1.0, ptxsim.ReadOnly(mem_a), ld_a, ptxsim.ReadOnly(mem_b), ld_b, 0.0, c, m]
    c.zero_()
    module.launch(variant.name, (m // bm, n // bn), threads, args, shared_bytes=shared, **launch)
    return c.T


def dtype_of(variant: Variant) -> torch.dtype:
    return torch.float16 if variant is HGEMM_TN else torch.float32


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: v.name)
def test_small_integers_are_exact(module: ptxsim.Module, variant: Variant) -> None:
    """Two CTAs with distinct tiles; sums stay integers that fp16 holds exactly."""
    generator = torch.Generator().manual_seed(0)
    _, _, bm, bn, bk = info(module, variant)
    a = torch.randint(-2, 3, (2 * bm, 4 * bk), generator=generator).to(dtype_of(variant))
    b = torch.randint(-2, 3, (bn, 4 * bk), generator=generator).to(dtype_of(variant))
    got = gemm(module, variant, a, b)
    assert torch.equal(got.double(), a.double() @ b.double().T)


@pytest.mark.parametrize("mode, seed", [("late", 0), ("random", 1)])
@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: v.name)
def test_random_values_under_any_schedule(module: ptxsim.Module, variant: Variant, mode: str, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    _, _, bm, bn, bk = info(module, variant)
    a = torch.randn(bm, 5 * bk, generator=generator).to(dtype_of(variant))
    b = torch.randn(bn, 5 * bk, generator=generator).to(dtype_of(variant))
    schedule = "random" if seed else "round_robin"
    got = gemm(module, variant, a, b, schedule=schedule, async_mode=mode, seed=seed).double()
    error = (got - a.double() @ b.double().T).abs()
    bound = a.double().abs() @ b.double().abs().T * (2.0**-9 if variant is HGEMM_TN else 2.0**-20)
    assert (error <= bound).all(), float((error / bound).max())


def test_one_k_tile_is_shorter_than_the_pipeline(module: ptxsim.Module) -> None:
    """The prologue then loads the only tile twice; the result must count it once."""
    _, _, bm, bn, bk = info(module, HGEMM_TN)
    a, b = torch.eye(bm, bk).half(), torch.arange(bn * bk).reshape(bn, bk).remainder(17).half()
    assert torch.equal(gemm(module, HGEMM_TN, a, b).double(), a.double() @ b.double().T)


def test_swizzled_ldmatrix_has_no_bank_conflicts(module: ptxsim.Module) -> None:
    shared, threads, bm, bn, bk = info(module, HGEMM_TN)
    a, b, c = torch.zeros(bm, 4 * bk).half(), torch.zeros(bn, 4 * bk).half(), torch.zeros(bn, bm).half()
    args = [bm, bn, 4 * bk, 1.0, a, 4 * bk, b, 4 * bk, 0.0, c, bm]
    stats = module.launch(HGEMM_TN.name, 1, threads, args, shared_bytes=shared)
    assert stats.shared_conflicts.get("ldmatrix", 0) == 0
    assert stats.shared_wavefronts["ldmatrix"] == 4 * stats.by_class["ldmatrix"]
    assert stats.tensor_flops % (2 * bm * bn * bk) == 0
    assert stats.tensor_flops >= 2 * bm * bn * 4 * bk


def test_too_little_shared_memory_is_noticed(module: ptxsim.Module) -> None:
    shared, threads, bm, bn, bk = info(module, HGEMM_TN)
    a, b, c = torch.zeros(bm, 4 * bk).half(), torch.zeros(bn, 4 * bk).half(), torch.zeros(bn, bm).half()
    args = [bm, bn, 4 * bk, 1.0, a, 4 * bk, b, 4 * bk, 0.0, c, bm]
    with pytest.raises(ptxsim.MemoryAccessError):
        module.launch(HGEMM_TN.name, 1, threads, args, shared_bytes=shared - 16)


def test_too_large_a_grid_is_caught_as_out_of_bounds(module: ptxsim.Module) -> None:
    """The tutorial's kernel does not predicate: one CTA too many leaves the tensors."""
    shared, threads, bm, bn, bk = info(module, HGEMM_TN)
    a, b, c = torch.zeros(bm, 4 * bk).half(), torch.zeros(bn, 4 * bk).half(), torch.zeros(bn, bm).half()
    args = [bm, bn, 4 * bk, 1.0, a, 4 * bk, b, 4 * bk, 0.0, c, bm]
    with pytest.raises(ptxsim.MemoryAccessError):
        module.launch(HGEMM_TN.name, (2, 1), threads, args, shared_bytes=shared)


SYNCHRONIZATION = ("bar.sync", "cp.async.wait_group", "cp.async.commit_group")


def test_every_removed_barrier_wait_and_commit_is_reported(ptx_file: Path, module: ptxsim.Module) -> None:
    """Each line of the fp16 kernel's pipeline is needed: without it the launch is an error, never a lucky pass."""
    shared, threads, bm, bn, bk = info(module, HGEMM_TN)
    a, b, c = torch.ones(bm, 5 * bk).half(), torch.ones(bn, 5 * bk).half(), torch.zeros(bn, bm).half()
    args = [bm, bn, 5 * bk, 1.0, a, 5 * bk, b, 5 * bk, 0.0, c, bm]
    lines = ptx_file.read_text().splitlines()
    first = next(i for i, line in enumerate(lines) if f".entry {HGEMM_TN.name}(" in line)
    last = next(i for i in range(first, len(lines)) if lines[i].startswith("}"))
    removable = [i for i in range(first, last) if any(name in lines[i] for name in SYNCHRONIZATION)]
    assert len(removable) >= 7
    for index in removable:
        broken = ptxsim.load("\n".join([*lines[:index], *lines[index + 1 :]]))
        with pytest.raises((ptxsim.UninitializedRead, ptxsim.RaceError)):
            broken.launch(HGEMM_TN.name, 1, threads, args, shared_bytes=shared)
            pytest.fail(f"unnoticed: line {index - first}, {lines[index].strip()}")
