# SPDX-License-Identifier: Apache-2.0
"""Small Triton kernels and their compilation to PTX without a GPU. Responsible for sources and launch facts only."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from attnsmith.tools import ptxsim
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


@triton.jit
def attention_kernel(
    q_ptr, k_ptr, v_ptr, o_ptr, lse_ptr, seqlen_q, seqlen_k, scale_log2,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, HEAD_DIM: tl.constexpr, IS_CAUSAL: tl.constexpr,
):  # fmt: skip
    """Online-softmax attention of one (BLOCK_M, HEAD_DIM) tile; tensors are (head, seqlen, HEAD_DIM) contiguous."""
    m_block, head = tl.program_id(0), tl.program_id(1)
    rows = m_block * BLOCK_M + tl.arange(0, BLOCK_M)
    dims = tl.arange(0, HEAD_DIM)
    q_base = q_ptr + head * seqlen_q * HEAD_DIM
    q = tl.load(q_base + rows[:, None] * HEAD_DIM + dims[None, :], mask=rows[:, None] < seqlen_q, other=0.0)
    row_max = tl.full([BLOCK_M], float("-inf"), tl.float32)
    row_sum = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, HEAD_DIM], tl.float32)
    end = seqlen_k
    if IS_CAUSAL:  # bottom-right aligned
        end = tl.minimum(seqlen_k, (m_block + 1) * BLOCK_M + seqlen_k - seqlen_q)
    for start in range(0, end, BLOCK_N):
        cols = start + tl.arange(0, BLOCK_N)
        inside = cols < seqlen_k
        offsets = head * seqlen_k * HEAD_DIM + cols[:, None] * HEAD_DIM + dims[None, :]
        k = tl.load(k_ptr + offsets, mask=inside[:, None], other=0.0)
        s = tl.dot(q, tl.trans(k)) * scale_log2
        keep = inside[None, :]
        if IS_CAUSAL:
            keep = keep & (cols[None, :] <= rows[:, None] + seqlen_k - seqlen_q)
        s = tl.where(keep, s, float("-inf"))
        new_max = tl.maximum(row_max, tl.max(s, 1))
        safe_max = tl.where(new_max == float("-inf"), 0.0, new_max)
        p = tl.exp2(s - safe_max[:, None])
        correction = tl.exp2(row_max - safe_max)
        row_sum = row_sum * correction + tl.sum(p, 1)
        v = tl.load(v_ptr + offsets, mask=inside[:, None], other=0.0)
        acc = acc * correction[:, None] + tl.dot(p.to(v.dtype), v)
        row_max = new_max
    acc = acc / row_sum[:, None]
    o_base = o_ptr + head * seqlen_q * HEAD_DIM
    tl.store(o_base + rows[:, None] * HEAD_DIM + dims[None, :], acc, mask=rows[:, None] < seqlen_q)
    lse = (row_max + tl.log2(row_sum)) * 0.6931471805599453
    tl.store(lse_ptr + head * seqlen_q + rows, lse, mask=rows < seqlen_q)


@triton.jit
def gemm_kernel(
    a_ptr, b_ptr, c_ptr, m, n, k, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """C (m, n) = A (m, k) B (k, n), all row-major, every edge masked."""
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, k, BLOCK_K):
        ks = start + tl.arange(0, BLOCK_K)
        a = tl.load(a_ptr + rows[:, None] * k + ks[None, :], mask=(rows[:, None] < m) & (ks[None, :] < k), other=0.0)
        b = tl.load(b_ptr + ks[:, None] * n + cols[None, :], mask=(ks[:, None] < k) & (cols[None, :] < n), other=0.0)
        acc = tl.dot(a, b, acc)
    mask = (rows[:, None] < m) & (cols[None, :] < n)
    tl.store(c_ptr + rows[:, None] * n + cols[None, :], acc, mask=mask)


@triton.jit
def softmax_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    """Row softmax: reductions over lanes and warps, exp, division."""
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * n + cols, mask=cols < n, other=float("-inf"))
    e = tl.exp(x - tl.max(x, 0))
    tl.store(y_ptr + row * n + cols, e / tl.sum(e, 0), mask=cols < n)


@triton.jit
def histogram_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr, BINS: tl.constexpr):
    """Counts by atomic adds; prefix sums of the block besides."""
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + index, mask=index < n, other=0)
    tl.atomic_add(out_ptr + x, 1, mask=index < n)
    running = tl.cumsum(tl.where(index < n, x, 0), 0)
    tl.store(out_ptr + BINS + index, running, mask=index < n)


@dataclass(frozen=True)
class Compiled:
    """A compiled Triton kernel, launchable on the simulator."""

    module: ptxsim.Module
    ptx: str
    name: str
    threads: int
    shared_bytes: int
    extra_pointers: int
    """Triton appends pointers to scratch memory that these kernels do not use."""
    device: str = "a100"

    def launch(self, grid: tuple[int, ...], args: list[Any], **options: Any) -> ptxsim.Stats:
        """Runs the kernel; `args` without Triton's own scratch pointers."""
        padded = [*args, *[None] * self.extra_pointers]
        options = {"device": self.device, **options}
        return self.module.launch(self.name, grid, self.threads, padded, shared_bytes=self.shared_bytes, **options)


def compile_kernel(
    function: Any,
    signature: dict[str, str],
    constants: dict[str, Any],
    *,
    num_warps: int = 4,
    num_stages: int = 2,
    capability: int = 80,
) -> Compiled:
    """Compiles for sm_80 or another capability; `signature` gives Triton types of the run-time arguments."""
    compiled = compile_text(function, signature, constants, capability, num_warps, num_stages)
    module = ptxsim.load(compiled.asm["ptx"])
    (entry,) = module.entries
    return Compiled(
        module=module,
        ptx=compiled.asm["ptx"],
        name=entry.name,
        threads=32 * num_warps,
        shared_bytes=compiled.metadata.shared,
        extra_pointers=len(entry.params) - len(signature),
        device="a100" if capability == 80 else "h100",
    )


def compile_text(
    function: Any,
    signature: dict[str, str],
    constants: dict[str, Any],
    capability: int,
    num_warps: int,
    num_stages: int,
) -> Any:
    """Triton's own result (asm, metadata) for a compute capability such as 80."""
    types = {**signature, **dict.fromkeys(constants, "constexpr")}
    # Aligned pointers, as torch gives them: Triton then vectorizes and uses 16-byte cp.async.
    aligned = {(i,): [["tt.divisibility", 16]] for i, kind in enumerate(signature.values()) if kind[0] == "*"}
    return triton.compile(
        ASTSource(function, types, constants, aligned),
        target=GPUTarget("cuda", capability, 32),
        options={"num_warps": num_warps, "num_stages": num_stages},
    )


TRITON_TYPES = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32"}


def attention_arguments(dtype: torch.dtype, is_causal: bool, head_dim: int) -> tuple[dict[str, str], dict[str, Any]]:
    """Signature and constants of attention_kernel with 64 x 32 tiles."""
    signature = dict.fromkeys(["q_ptr", "k_ptr", "v_ptr", "o_ptr"], f"*{TRITON_TYPES[dtype]}")
    signature |= {"lse_ptr": "*fp32", "seqlen_q": "i32", "seqlen_k": "i32", "scale_log2": "fp32"}
    return signature, {"BLOCK_M": 64, "BLOCK_N": 32, "HEAD_DIM": head_dim, "IS_CAUSAL": is_causal}


@functools.cache
def attention(
    dtype: torch.dtype, is_causal: bool, head_dim: int, num_stages: int = 2, capability: int = 80
) -> Compiled:
    """attention_kernel."""
    arguments = attention_arguments(dtype, is_causal, head_dim)
    return compile_kernel(attention_kernel, *arguments, num_stages=num_stages, capability=capability)


def run_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    is_causal: bool,
    num_stages: int = 2,
    capability: int = 80,
    **options: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and log-sum-exp of (head, seqlen, head_dim) tensors."""
    heads, seqlen_q, head_dim = q.shape
    out, lse = torch.zeros_like(q), torch.zeros(heads, seqlen_q)
    compiled = attention(q.dtype, is_causal, head_dim, num_stages, capability)
    scale_log2 = math.log2(math.e) / math.sqrt(head_dim)
    args = [*map(ptxsim.ReadOnly, (q, k, v)), out, lse, seqlen_q, k.shape[1], scale_log2]
    compiled.launch((-(-seqlen_q // 64), heads), args, **options)
    return out, lse
