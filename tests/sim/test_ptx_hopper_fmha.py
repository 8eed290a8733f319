# SPDX-License-Identifier: Apache-2.0
"""CUTLASS's Hopper attention (example 88_hopper_fmha) on the simulator: TMA producer warp, setmaxnreg, two consumer
warpgroups with RS and SS wgmma, mbarrier pipelines, TMA store. Nobody here wrote it, and it runs on hardware."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import filelock
import numpy as np
import pytest
import torch
from attnsmith.codegen.compile.nvrtc import compile_source
from attnsmith.tools import ptxsim

from tests.sim.ptx.cutlass_fmha import SOURCE, include_flags

HEADS, SEQLEN_Q, SEQLEN_K, HEAD_DIM = 2, 256, 384, 64


@pytest.fixture(scope="module")
def ptx(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Compiled once per test run, also when several xdist workers need it."""
    base = tmp_path_factory.getbasetemp()
    shared: Path = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "fmha.ptx"
    with filelock.FileLock(f"{shared}.lock"):
        if not shared.exists():
            flags = ["--ptxas-options=-O0", *include_flags()]
            shared.write_text(compile_source(SOURCE, "fmha", target="sm_90a", extra_flags=flags).ptx)
    return shared.read_text()


class Problem:
    """Tensors (1, seqlen, head, dim) and the kernel's parameter block for them."""

    def __init__(self, module: ptxsim.Module) -> None:
        generator = torch.Generator().manual_seed(0)
        self.q = torch.randn(1, SEQLEN_Q, HEADS, HEAD_DIM, generator=generator).half()
        self.k, self.v = (torch.randn(1, SEQLEN_K, HEADS, HEAD_DIM, generator=generator).half() for _ in range(2))
        self.out, self.lse = torch.zeros_like(self.q), torch.zeros(HEADS, SEQLEN_Q)
        raw = np.zeros(int(module.entry("fmha").params[0]["size"]), np.uint8)
        facts = np.zeros(16, np.uint32)
        module.launch("info", 1, 1, [1, HEADS, SEQLEN_Q, SEQLEN_K, HEAD_DIM, raw, facts], device="h100")
        _, self.shared_bytes, *rest = facts.tolist()
        block = bytearray(raw.tobytes())
        for tensor, offset, bits in zip((self.q, self.k, self.v, self.out), rest[0:8:2], rest[1:8:2], strict=True):
            # Loads swizzle rows of 128 bytes; the store's 64 x 32 tile has rows of 64.
            row = 64 if tensor is self.out else 128
            block[offset : offset + 128] = tensor_map(tensor, row, bits // 8 // row)
        block[rest[8] : rest[8] + 8] = struct.pack("<Q", self.lse.data_ptr())
        self.block = bytes(block)

    def run(self, module: ptxsim.Module, **options: object) -> ptxsim.Stats:
        named = {"q": self.q, "k": self.k, "v": self.v, "out": self.out, "lse": self.lse}
        owned = [
            ptxsim.Allocation(t.data_ptr(), t.numel() * t.element_size(), name, name in ("out", "lse"))
            for name, t in named.items()
        ]
        launch = {"shared_bytes": self.shared_bytes, "device": "h100", "allocations": owned, **options}
        return module.launch("fmha", (SEQLEN_Q // 128, 1, HEADS), 384, self.block, **launch)


def tensor_map(tensor: torch.Tensor, row_bytes: int, rows: int) -> bytes:
    _, seqlen, heads, dim = tensor.shape
    strides = [heads * dim * 2, seqlen * heads * dim * 2, dim * 2]
    box = [row_bytes // 2, rows, 1, 1]
    return ptxsim.encode_tensor_map(
        tensor.data_ptr(), "float16", [dim, seqlen, 1, heads], strides, box, swizzle=row_bytes
    )


@pytest.mark.parametrize("mode, seed", [("late", 0), ("random", 1), ("random", 2)])
def test_attention(ptx: str, mode: str, seed: int) -> None:
    module = ptxsim.load(ptx)
    problem = Problem(module)
    stats = problem.run(module, async_mode=mode, seed=seed, schedule="random" if seed else "round_robin")
    q, k, v = (x.double().transpose(1, 2) for x in (problem.q, problem.k, problem.v))
    scores = q @ k.transpose(2, 3) / HEAD_DIM**0.5
    want = (torch.softmax(scores, -1) @ v).transpose(1, 2)
    assert (problem.out.double() - want).abs().max() < 1e-3
    assert (problem.lse.double() - torch.logsumexp(scores, -1)[0]).abs().max() < 1e-3
    assert stats.tensor_flops == 4 * HEADS * SEQLEN_Q * SEQLEN_K * HEAD_DIM
    tiles = HEADS * (SEQLEN_Q // 128)
    assert stats.tma_bytes_read == tiles * (128 + 2 * SEQLEN_K) * HEAD_DIM * 2


STEPS = ("mbarrier.try_wait", "wgmma.wait_group", "wgmma.fence", "wgmma.commit_group", "fence.proxy.async", "bar.sync")


def test_removed_synchronization_is_reported_or_has_no_effect(ptx: str) -> None:
    """The kernel has steps that this problem does not need; every other removal must be an error."""
    lines = ptx.splitlines()
    first = next(i for i, line in enumerate(lines) if ".entry fmha(" in line)
    last = next((i for i in range(first + 1, len(lines)) if ".entry" in lines[i]), len(lines))
    removable = [i for i in range(first, last) if lines[i].strip().startswith(STEPS)]
    good = Problem(ptxsim.load(ptx))
    good.run(ptxsim.load(ptx))
    reported: dict[str, int] = dict.fromkeys(STEPS, 0)
    for index in removable:
        step = next(step for step in STEPS if lines[index].strip().startswith(step))
        instead = ["\tsetp.eq.u32 P1, 0, 0;"] if step == "mbarrier.try_wait" else []
        broken = ptxsim.load("\n".join([*lines[:index], *instead, *lines[index + 1 :]]))
        problem = Problem(broken)
        try:
            problem.run(broken)
        except ptxsim.PtxSimError:
            reported[step] += 1
            continue
        assert torch.equal(problem.out, good.out), f"unnoticed: {lines[index].strip()}, line {index + 1}"
    assert all(reported.values()), reported
