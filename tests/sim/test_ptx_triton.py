# SPDX-License-Identifier: Apache-2.0
"""Kernels that Triton compiles for sm_80 on the simulator: attention, GEMM, softmax and atomics give right results."""

from __future__ import annotations

import math

import pytest
import torch

pytest.importorskip("triton")
from attnsmith.tools import ptxsim

from tests.sim.ptx import triton_kernels as kernels

DTYPES = [torch.float16, torch.bfloat16]


def case_id(value: object) -> str:
    return str(value).removeprefix("torch.")


def reference_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, is_causal: bool, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention in `dtype` arithmetic; fp64 is the oracle, the input's own type the yardstick."""
    q, k, v = (x.to(dtype) for x in (q, k, v))
    scores = (q @ k.transpose(1, 2)).to(torch.float32 if dtype != torch.float64 else dtype) / math.sqrt(q.shape[-1])
    if is_causal:
        rows, cols = torch.arange(q.shape[1])[:, None], torch.arange(k.shape[1])[None]
        scores = scores.masked_fill(cols > rows + k.shape[1] - q.shape[1], float("-inf"))
    return torch.softmax(scores, -1).to(dtype) @ v, torch.logsumexp(scores, -1)


ATTENTION = [
    pytest.param(dtype, causal, sq, sk, d, id=f"{case_id(dtype)}-{'causal' if causal else 'full'}-{sq}x{sk}x{d}")
    for dtype in DTYPES
    for causal in (False, True)
    for sq, sk, d in ((64, 64, 64), (100, 131, 64), (1, 77, 64), (64, 96, 128))
]


@pytest.mark.parametrize("dtype, is_causal, seqlen_q, seqlen_k, head_dim", ATTENTION)
def test_attention(dtype: torch.dtype, is_causal: bool, seqlen_q: int, seqlen_k: int, head_dim: int) -> None:
    generator = torch.Generator().manual_seed(seqlen_q + head_dim)
    q = torch.randn(2, seqlen_q, head_dim, generator=generator).to(dtype)
    k, v = (torch.randn(2, seqlen_k, head_dim, generator=generator).to(dtype) for _ in range(2))
    out, lse = kernels.run_attention(q, k, v, is_causal)
    want, want_lse = reference_attention(q, k, v, is_causal, torch.float64)
    yardstick = (reference_attention(q, k, v, is_causal, dtype)[0].double() - want).abs().max()
    assert (out.double() - want).abs().max() <= 2 * yardstick + 1e-5
    assert (lse.double() - want_lse).abs().max() <= 1e-4


@pytest.mark.parametrize("num_stages", [1, 3])
@pytest.mark.parametrize("schedule, async_mode, seed", [("round_robin", "late", 0), ("random", "random", 1)])
def test_attention_does_not_depend_on_timing(num_stages: int, schedule: str, async_mode: str, seed: int) -> None:
    """cp.async pipelines of every depth, any interleaving: bitwise the same."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 128, 64, generator=generator).half() for _ in range(3))
    options = {"schedule": schedule, "async_mode": async_mode, "seed": seed}
    out, lse = kernels.run_attention(q, k, v, True, num_stages, **options)
    base, base_lse = kernels.run_attention(q, k, v, True, num_stages)
    assert torch.equal(out, base) and torch.equal(lse, base_lse)
    want = reference_attention(q, k, v, True, torch.float64)[0]
    assert (out.double() - want).abs().max() < 2e-3


def test_removed_synchronization_is_reported_or_has_no_effect() -> None:
    """Triton emits some barriers that nothing needs; every other removal must be an error, never a wrong result."""
    compiled = kernels.attention(torch.float16, True, 64, 3)
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 128, 64, generator=generator).half() for _ in range(3))
    want, _ = kernels.run_attention(q, k, v, True, 3)
    lines = compiled.ptx.splitlines()
    removable = [i for i, line in enumerate(lines) if line.strip().startswith(("bar.sync", "cp.async.wait_group"))]
    reported = 0
    for index in removable:
        out, lse = torch.zeros_like(q), torch.zeros(1, 128)
        scale_log2 = math.log2(math.e) / 8
        args = [q, k, v, out, lse, 128, 128, scale_log2, *[None] * compiled.extra_pointers]
        broken = ptxsim.load("\n".join([*lines[:index], *lines[index + 1 :]]))
        try:
            broken.launch(compiled.name, (2, 1), compiled.threads, args, shared_bytes=compiled.shared_bytes)
        except (ptxsim.UninitializedRead, ptxsim.RaceError):
            reported += 1
            continue
        assert torch.equal(out, want), f"unnoticed: {lines[index].strip()}, line {index + 1}"
    assert reported >= len(removable) / 2


GEMMS = [(64, 64, 64), (100, 72, 96), (33, 130, 50)]


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float32], ids=case_id)
@pytest.mark.parametrize("m, n, k", GEMMS, ids=lambda v: str(v))
def test_gemm(m: int, n: int, k: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(m)
    a = torch.randn(m, k, generator=generator).to(dtype)
    b = torch.randn(k, n, generator=generator).to(dtype)
    c = torch.zeros(m, n)
    kind = kernels.TRITON_TYPES[dtype]
    signature = {"a_ptr": f"*{kind}", "b_ptr": f"*{kind}", "c_ptr": "*fp32", "m": "i32", "n": "i32", "k": "i32"}
    constants = {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 32}
    compiled = kernels.compile_kernel(kernels.gemm_kernel, signature, constants, num_stages=3)
    stats = compiled.launch((-(-m // 64), -(-n // 64)), [ptxsim.ReadOnly(a), ptxsim.ReadOnly(b), c, m, n, k])
    exact = a.double() @ b.double()
    bound = a.double().abs() @ b.double().abs() * (2.0**-9 if dtype == torch.float32 else 2.0**-20)  # fp32 runs as tf32
    assert ((c.double() - exact).abs() <= bound).all()
    assert stats.tensor_flops >= 2 * m * n * k


def test_softmax() -> None:
    x = torch.randn(5, 333, generator=torch.Generator().manual_seed(0))
    y = torch.zeros_like(x)
    signature = {"x_ptr": "*fp32", "y_ptr": "*fp32", "n": "i32"}
    compiled = kernels.compile_kernel(kernels.softmax_kernel, signature, {"BLOCK": 512})
    compiled.launch((5,), [ptxsim.ReadOnly(x), y, 333])
    assert torch.allclose(y, torch.softmax(x, -1), rtol=1e-5, atol=1e-7)


def test_atomics_and_prefix_sums() -> None:
    x = torch.randint(0, 16, (300,), generator=torch.Generator().manual_seed(0), dtype=torch.int32)
    out = torch.zeros(16 + 300, dtype=torch.int32)
    signature = {"x_ptr": "*i32", "out_ptr": "*i32", "n": "i32"}
    compiled = kernels.compile_kernel(kernels.histogram_kernel, signature, {"BLOCK": 256, "BINS": 16})
    compiled.launch((2,), [ptxsim.ReadOnly(x), out, 300])
    assert torch.equal(out[:16], torch.bincount(x, minlength=16).int())
    assert torch.equal(out[16:272], x[:256].cumsum(0).int())
    assert torch.equal(out[272:], x[256:].cumsum(0).int())


def test_hopper_code_is_described_line_by_line() -> None:
    """Whatever of Triton's sm_90 output cannot be simulated is listed with its own line; nothing is a parse error."""
    arguments = kernels.attention_arguments(torch.float16, True, 64)
    text = kernels.compile_text(kernels.attention_kernel, *arguments, 90, 4, 2).asm["ptx"]
    module = ptxsim.parse(text)
    lines = text.splitlines()
    assert module.target.startswith("sm_90")
    assert [entry.name for entry in module.entries] == ["attention_kernel"]
    for item in module.unsupported:
        assert item["text"].split()[0].split(".")[0] in lines[item["line"] - 1]
