# SPDX-License-Identifier: Apache-2.0
"""CUTLASS's CuTe tutorials wgmma_sm90 and wgmma_tma_sm90 on the simulator: code that runs on hardware and that nobody
here wrote. cp.async or TMA pipelines with mbarriers, clusters of two, wgmma with 128-byte swizzles of both majornesses.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import filelock
import numpy as np
import pytest
import torch
from attnsmith.codegen.compile.nvrtc import compile_source
from attnsmith.tools import ptxsim

from tests.sim.ptx.cute_hopper import VARIANTS, tma_source, wgmma_source


def compiled(tmp_path_factory: pytest.TempPathFactory, name: str, source: Callable[[], str]) -> Path:
    """PTX of a tutorial, compiled once per test run, also when several xdist workers need it."""
    base = tmp_path_factory.getbasetemp()
    shared = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / f"{name}.ptx"
    with filelock.FileLock(f"{shared}.lock"):
        if not shared.exists():
            built = compile_source(source(), f"{name}_tn", target="sm_90a", extra_flags=["--ptxas-options=-O0"])
            shared.write_text(built.ptx)
    return shared


@pytest.fixture(scope="module")
def wgmma_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory, "wgmma", wgmma_source)


@pytest.fixture(scope="module")
def tma_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory, "tma", tma_source)


@pytest.fixture(scope="module")
def wgmma(wgmma_file: Path) -> ptxsim.Module:
    return ptxsim.load(wgmma_file)


@pytest.fixture(scope="module")
def tma(tma_file: Path) -> ptxsim.Module:
    return ptxsim.load(tma_file)


def inputs(m: int, n: int, k: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Small integers: every sum is exact in fp16."""
    generator = torch.Generator().manual_seed(seed)
    a = torch.randint(-2, 3, (m, k), generator=generator).half()
    return a, torch.randint(-2, 3, (n, k), generator=generator).half()


def memory(variant: str, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, int, torch.Tensor, int]:
    if variant == "nt":  # m-major and n-major
        return a.T.contiguous(), a.shape[0], b.T.contiguous(), b.shape[0]
    return a, a.shape[1], b, b.shape[1]


def run_wgmma(
    module: ptxsim.Module, variant: str, a: torch.Tensor, b: torch.Tensor, **launch: object
) -> tuple[torch.Tensor, ptxsim.Stats]:
    facts = np.zeros(2, np.int32)
    module.launch(f"wgmma_{variant}_info", 1, 1, [facts], device="h100")
    (m, k), n = a.shape, b.shape[0]
    mem_a, ld_a, mem_b, ld_b = memory(variant, a, b)
    c = torch.zeros(n, m, dtype=torch.float16)
    args = [m, n, k, 1.0, ptxsim.ReadOnly(mem_a), ld_a, ptxsim.ReadOnly(mem_b), ld_b, 0.0, c, m]
    launch = {"shared_bytes": int(facts[0]), "device": "h100", **launch}
    stats = module.launch(f"wgmma_{variant}", (m // 128, n // 128), int(facts[1]), args, **launch)
    return c.T, stats


def tensor_map(tensor: torch.Tensor, facts: list[int]) -> bytes:
    """The map that CuTe asks the driver for: rank, extents, byte strides, box; both tutorials swizzle by 128 bytes."""
    rank = facts[0]
    extents, strides, box = facts[1 : 1 + rank], facts[6 : 6 + rank], facts[11 : 11 + rank]
    assert strides[0] == 2
    return ptxsim.encode_tensor_map(tensor.data_ptr(), "float16", extents, strides[1:], box, swizzle=128)


def run_tma(
    module: ptxsim.Module, variant: str, a: torch.Tensor, b: torch.Tensor, **launch: object
) -> tuple[torch.Tensor, ptxsim.Stats]:
    (m, k), n = a.shape, b.shape[0]
    mem_a, ld_a, mem_b, ld_b = memory(variant, a, b)
    facts = np.zeros(40, np.uint64)
    module.launch(f"tma_{variant}_info", 1, 1, [m, n, k, ld_a, ld_b, facts], device="h100")
    shared, threads, *rest = [int(x) for x in facts]
    c = torch.zeros(n, m, dtype=torch.float16)
    maps = [tensor_map(mem_a, rest[:16]), tensor_map(mem_b, rest[16:32])]
    entry = module.entry(f"tma_{variant}")
    maps = [one.ljust(int(p["size"]), b"\0") for one, p in zip(maps, entry.params[-2:], strict=True)]
    owned = [ptxsim.Allocation(t.data_ptr(), t.numel() * 2, name, False) for t, name in ((mem_a, "A"), (mem_b, "B"))]
    args = [m, n, k, 1.0, None, ld_a, None, ld_b, 0.0, c, m, *maps]
    launch = {"cluster": (2, 1, 1), "device": "h100", "allocations": owned, **launch}
    stats = module.launch(entry.name, (m // 128, n // 128), threads, args, shared_bytes=shared, **launch)
    return c.T, stats


@pytest.mark.parametrize("variant", VARIANTS)
def test_wgmma_tutorial(wgmma: ptxsim.Module, variant: str) -> None:
    """It orders neither the other warps' cp.async (no barrier) nor the proxies: right results with these two checks
    off, and the checks say so otherwise."""
    a, b = inputs(128, 256, 320)
    got, stats = run_wgmma(wgmma, variant, a, b, check_races=False)
    assert torch.equal(got.double(), a.double() @ b.double().T)
    assert stats.tensor_flops == 2 * 128 * 256 * 320


@pytest.mark.parametrize("variant", VARIANTS)
def test_wgmma_tutorial_lacks_synchronization(wgmma: ptxsim.Module, variant: str) -> None:
    a, b = inputs(128, 128, 192)
    with pytest.raises((ptxsim.RaceError, ptxsim.UninitializedRead)):
        run_wgmma(wgmma, variant, a, b)


@pytest.mark.parametrize("mode, seed", [("late", 0), ("random", 1)])
@pytest.mark.parametrize("variant", VARIANTS)
def test_tma_tutorial(tma: ptxsim.Module, variant: str, mode: str, seed: int) -> None:
    a, b = inputs(256, 128, 448, seed)
    schedule = "random" if seed else "round_robin"
    got, stats = run_tma(tma, variant, a, b, schedule=schedule, async_mode=mode, seed=seed)
    assert torch.equal(got.double(), a.double() @ b.double().T)
    assert stats.tensor_flops == 2 * 256 * 128 * 448
    assert stats.tma_bytes_read == 2 * (2 * 128 + 2 * 128) * 448  # two CTAs, each its A and its B tiles


NEEDED = ("wgmma.wait_group", "wgmma.commit_group", "mbarrier.try_wait", "mbarrier.arrive.expect_tx", "mbarrier.init")


def test_every_removed_step_of_the_tma_pipeline_is_reported(tma_file: Path) -> None:
    """Without any line of the pipeline the launch is an error, but for one: the wait for the consumers. The producer
    is a warp of the only consuming warpgroup, and its own wgmma.wait_group covers the whole warpgroup."""
    a, b = inputs(256, 128, 448)
    lines = tma_file.read_text().splitlines()
    first = next(i for i, line in enumerate(lines) if ".entry tma_tn(" in line)
    last = next(i for i in range(first + 1, len(lines)) if ".entry" in lines[i])
    removable = [i for i in range(first, last) if any(name in lines[i] for name in NEEDED)]
    assert len(removable) >= 10
    unnoticed = []
    for index in removable:
        instead = ["\tsetp.eq.u32 P1, 0, 0;"] if "try_wait" in lines[index] else []
        broken = ptxsim.load("\n".join([*lines[:index], *instead, *lines[index + 1 :]]))
        try:
            got, _ = run_tma(broken, "tn", a, b)
        except ptxsim.PtxSimError:
            continue
        assert torch.equal(got.double(), a.double() @ b.double().T)
        unnoticed.append(index)
    assert unnoticed == [i for i in removable if "try_wait" in lines[i]][1:]
