# SPDX-License-Identifier: Apache-2.0
"""Shared memory and registers of an SM80 kernel, as templates/fwd_sm80.cu.j2 takes them. resources.py is the caller."""

from __future__ import annotations

from attnsmith.codegen.limits import SMEM_ALIGNMENT, WARP_SIZE, smem_aligned, target_limits
from attnsmith.codegen.spec import KernelSpec, Mask


def num_threads(spec: KernelSpec) -> int:
    """Threads per CTA."""
    return WARP_SIZE * spec.tile.num_warps


def smem_members(spec: KernelSpec) -> dict[str, int]:
    """Bytes of each SharedStorage member. O is staged through Q's buffer after the last key tile, so `q_or_o` holds the
    larger of the two."""
    key, tile = spec.key, spec.tile
    element = key.dtype.num_bytes
    return {
        "q_or_o": smem_aligned(tile.block_m * max(key.head_dim, key.head_dim_v) * element),
        "k": smem_aligned(tile.num_stages * tile.block_n * key.head_dim * element),
        "v": smem_aligned(tile.num_stages * tile.block_n * key.head_dim_v * element),
    }


def static_smem_bytes(spec: KernelSpec) -> int:
    """A flag where the mask hides keys, and the gap to SharedStorage."""
    return 0 if spec.key.mask is Mask.FULL else SMEM_ALIGNMENT


def register_breakdown(spec: KernelSpec) -> dict[str, int]:
    """Registers per thread by purpose.

    `acc_s` is block_m x block_n fp32 scores and `acc_o` block_m x head_dim_v fp32 outputs over the CTA's threads.
    P is converted to 16 bit slice by slice in the PV GEMM, so P never stands beside S. `operands` are two k-steps of
    A fragments (4 registers per 16 rows) and two ldmatrix.x4 of B; `softmax` is row_max and row_sum of two rows per
    16-row tile; `addresses` are pointers, strides and counters.
    """
    key, tile = spec.key, spec.tile
    threads = num_threads(spec)
    row_tiles = max(1, tile.block_m // (16 * tile.num_warps))
    return {
        "acc_s": -(-tile.block_m * tile.block_n // threads),
        "acc_o": -(-tile.block_m * key.head_dim_v // threads),
        "operands": 2 * 4 * row_tiles + 2 * 4,
        "softmax": 4 * row_tiles,
        "addresses": 24,
    }


def register_limit(spec: KernelSpec, target: str) -> int:
    """What one thread can address: no smaller limit is asked of the compiler."""
    return target_limits(target).max_registers_per_thread


def registers_at_launch(spec: KernelSpec) -> int:
    """What a thread is given: as many as the kernel uses, which the plan estimates."""
    return sum(register_breakdown(spec).values())
