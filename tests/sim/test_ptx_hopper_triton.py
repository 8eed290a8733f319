# SPDX-License-Identifier: Apache-2.0
"""Kernels that Triton compiles for sm_90 on the simulator: wgmma, cp.async and proxy fences give right results."""

from __future__ import annotations

import math

import pytest
import torch

pytest.importorskip("triton")
from attnsmith.tools import ptxsim

from tests.sim.ptx import triton_kernels as kernels
from tests.sim.test_ptx_triton import DTYPES, case_id, reference_attention


@pytest.mark.parametrize("seqlen_q, seqlen_k, head_dim", [(64, 64, 64), (100, 131, 64), (64, 96, 128)])
@pytest.mark.parametrize("is_causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("dtype", DTYPES, ids=case_id)
def test_attention(dtype: torch.dtype, is_causal: bool, seqlen_q: int, seqlen_k: int, head_dim: int) -> None:
    generator = torch.Generator().manual_seed(seqlen_q + head_dim)
    q = torch.randn(2, seqlen_q, head_dim, generator=generator).to(dtype)
    k, v = (torch.randn(2, seqlen_k, head_dim, generator=generator).to(dtype) for _ in range(2))
    out, lse = kernels.run_attention(q, k, v, is_causal, capability=90)
    want, want_lse = reference_attention(q, k, v, is_causal, torch.float64)
    yardstick = (reference_attention(q, k, v, is_causal, dtype)[0].double() - want).abs().max()
    assert (out.double() - want).abs().max() <= 2 * yardstick + 1e-5
    assert (lse.double() - want_lse).abs().max() <= 1e-4


@pytest.mark.parametrize("num_stages", [1, 3])
def test_attention_does_not_depend_on_timing(num_stages: int) -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 128, 64, generator=generator).half() for _ in range(3))
    base, base_lse = kernels.run_attention(q, k, v, True, num_stages, 90)
    for seed in range(3):
        options = {"schedule": "random", "async_mode": "random", "seed": seed}
        out, lse = kernels.run_attention(q, k, v, True, num_stages, 90, **options)
        assert torch.equal(out, base) and torch.equal(lse, base_lse)


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float32], ids=case_id)
@pytest.mark.parametrize("m, n, k", [(64, 64, 64), (100, 72, 96)], ids=str)
def test_gemm(m: int, n: int, k: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(m)
    a = torch.randn(m, k, generator=generator).to(dtype)
    b = torch.randn(k, n, generator=generator).to(dtype)
    c = torch.zeros(m, n)
    kind = kernels.TRITON_TYPES[dtype]
    signature = {"a_ptr": f"*{kind}", "b_ptr": f"*{kind}", "c_ptr": "*fp32", "m": "i32", "n": "i32", "k": "i32"}
    constants = {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 32}
    compiled = kernels.compile_kernel(kernels.gemm_kernel, signature, constants, num_stages=3, capability=90)
    stats = compiled.launch((-(-m // 64), -(-n // 64)), [ptxsim.ReadOnly(a), ptxsim.ReadOnly(b), c, m, n, k])
    exact = a.double() @ b.double()
    bound = a.double().abs() @ b.double().abs() * (2.0**-9 if dtype == torch.float32 else 2.0**-20)  # fp32 runs as tf32
    assert ((c.double() - exact).abs() <= bound).all()
    assert stats.tensor_flops >= 2 * m * n * k and stats.by_class["wgmma"]


STEPS = (
    "bar.sync",
    "cp.async.wait_group",
    "fence.proxy.async",
    "wgmma.fence",
    "wgmma.commit_group",
    "wgmma.wait_group",
)


def test_removed_synchronization_is_reported_or_has_no_effect() -> None:
    """Triton emits some steps that nothing needs; every other removal must be an error, never a wrong result."""
    compiled = kernels.attention(torch.float16, True, 64, 3, 90)
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 128, 64, generator=generator).half() for _ in range(3))
    want, _ = kernels.run_attention(q, k, v, True, 3, 90)
    lines = compiled.ptx.splitlines()
    removable = [i for i, line in enumerate(lines) if line.strip().startswith(STEPS)]
    reported: dict[str, int] = dict.fromkeys(STEPS, 0)
    for index in removable:
        out, lse = torch.zeros_like(q), torch.zeros(1, 128)
        args = [q, k, v, out, lse, 128, 128, math.log2(math.e) / 8, *[None] * compiled.extra_pointers]
        broken = ptxsim.load("\n".join([*lines[:index], *lines[index + 1 :]]))
        launch = {"shared_bytes": compiled.shared_bytes, "device": "h100"}
        try:
            broken.launch(compiled.name, (2, 1), compiled.threads, args, **launch)
        except (ptxsim.UninitializedRead, ptxsim.RaceError):
            reported[next(step for step in STEPS if lines[index].strip().startswith(step))] += 1
            continue
        assert torch.equal(out, want), f"unnoticed: {lines[index].strip()}, line {index + 1}"
    assert all(reported.values()), reported
