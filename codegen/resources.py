# SPDX-License-Identifier: Apache-2.0
"""What a spec needs (shared memory, registers, threads, occupancy) and what each compile target has.

The shared-memory formula is the Python side of the rendered `static_assert(sizeof(SharedStorage) == ...)`.
Not responsible for saying what is legal: rules.py compares the two.
"""

from __future__ import annotations

from dataclasses import dataclass

from attnsmith.codegen.errors import SpecError
from attnsmith.codegen.spec import Arch, KernelSpec, Mask

KIB = 1024

WARP_SIZE = 32

SMEM_ALIGNMENT = 1024
"""Each SharedStorage member starts on a multiple of this: a multiple of every swizzle atom (8 rows x 128 B)."""

SMEM_RESERVED_PER_CTA = 1 * KIB
"""Shared memory that the system takes per resident CTA (compute capability 8.0 and later)."""

REGISTER_UNIT_PER_WARP = 256
"""Registers are given to a warp in units of this many."""


@dataclass(frozen=True, kw_only=True)
class TargetLimits:
    """Limits of one compile target, as the CUDA programming guide's table of technical specifications states them."""

    target: str
    """Compile target, for example `sm_80`."""
    archs: tuple[Arch, ...]
    """Kernel families whose instructions it has, preferred first."""
    gpus: str
    """Cards that have it."""
    smem_per_block: int
    """Bytes of shared memory that one CTA can opt in to."""
    smem_per_sm: int
    """Bytes of shared memory of one SM."""
    max_threads_per_sm: int
    """Resident threads of one SM."""
    max_blocks_per_sm: int
    """Resident CTAs of one SM."""
    registers_per_sm: int = 64 * KIB
    """32-bit registers of one SM."""
    max_registers_per_thread: int = 255
    """32-bit registers that one thread can address."""
    max_threads_per_block: int = 1024
    """Threads of one CTA."""

    def __post_init__(self) -> None:
        if self.smem_per_block + SMEM_RESERVED_PER_CTA > self.smem_per_sm:
            raise ValueError(f"{self.target}: a CTA's shared memory exceeds its SM's")
        if self.max_threads_per_sm % WARP_SIZE or self.max_threads_per_block > self.max_threads_per_sm:
            raise ValueError(f"{self.target}: thread limits contradict each other")


TARGETS: dict[str, TargetLimits] = {
    row.target: row
    for row in (
        TargetLimits(
            target="sm_80",
            archs=(Arch.SM80,),
            gpus="A100, A30",
            smem_per_block=163 * KIB,
            smem_per_sm=164 * KIB,
            max_threads_per_sm=2048,
            max_blocks_per_sm=32,
        ),
        TargetLimits(
            target="sm_86",
            archs=(Arch.SM80,),
            gpus="RTX 30xx, A10, A40",
            smem_per_block=99 * KIB,
            smem_per_sm=100 * KIB,
            max_threads_per_sm=1536,
            max_blocks_per_sm=16,
        ),
        TargetLimits(
            target="sm_89",
            archs=(Arch.SM80,),
            gpus="RTX 40xx, L4, L40",
            smem_per_block=99 * KIB,
            smem_per_sm=100 * KIB,
            max_threads_per_sm=1536,
            max_blocks_per_sm=24,
        ),
        TargetLimits(
            target="sm_90",
            archs=(Arch.SM80,),
            gpus="H100, H200 with kernels of the SM80 family",
            smem_per_block=227 * KIB,
            smem_per_sm=228 * KIB,
            max_threads_per_sm=2048,
            max_blocks_per_sm=32,
        ),
    )
}


def target_limits(target: str) -> TargetLimits:
    """The row of `target`; SpecError names the targets that exist."""
    try:
        return TARGETS[target]
    except KeyError:
        raise SpecError(
            asked=f"use target {target}",
            got=repr(target),
            allowed=", ".join(TARGETS),
            do="Pass the compile target of your GPU (A100: sm_80, RTX 30: sm_86, RTX 40: sm_89, H100: sm_90).",
        ) from None


def num_threads(spec: KernelSpec) -> int:
    """Threads per CTA."""
    return WARP_SIZE * spec.tile.num_warps


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // SMEM_ALIGNMENT) * SMEM_ALIGNMENT


def smem_members(spec: KernelSpec) -> dict[str, int]:
    """Bytes of each SharedStorage member by its C++ name, rounded up to SMEM_ALIGNMENT.

    O is staged through Q's buffer after the last key tile, so `q_or_o` holds the larger of the two.
    """
    key, tile = spec.key, spec.tile
    element = key.dtype.num_bytes
    return {
        "q_or_o": _aligned(tile.block_m * max(key.head_dim, key.head_dim_v) * element),
        "k": _aligned(tile.num_stages * tile.block_n * key.head_dim * element),
        "v": _aligned(tile.num_stages * tile.block_n * key.head_dim_v * element),
    }


def smem_bytes(spec: KernelSpec) -> int:
    """Dynamic shared memory of one CTA in bytes; equals sizeof(SharedStorage) of the rendered kernel."""
    return sum(smem_members(spec).values())


def static_smem_bytes(spec: KernelSpec) -> int:
    """Static shared memory of one CTA in bytes: a flag where the mask hides keys, and the gap to SharedStorage."""
    return 0 if spec.key.mask is Mask.FULL else SMEM_ALIGNMENT


def cta_smem_bytes(spec: KernelSpec) -> int:
    """What a CTA takes of the SM's shared memory in bytes, static part included: what the limits apply to."""
    return smem_bytes(spec) + static_smem_bytes(spec)


def register_breakdown(spec: KernelSpec) -> dict[str, int]:
    """32-bit registers per thread by purpose, at the widest point of the key loop.

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


def register_estimate(spec: KernelSpec) -> int:
    """Planned 32-bit registers per thread; the sum of `register_breakdown`.

    A necessary condition, used to refuse tiles that must spill. What ptxas really took is in `attnsmith inspect`.
    """
    return sum(register_breakdown(spec).values())


def occupancy(spec: KernelSpec, target: str, *, registers: int | None = None) -> int:
    """CTAs that fit one SM of `target` at once; 0 when not even one does.

    `registers` per thread is what ptxas reported, or the estimate when None.
    """
    limits = target_limits(target)
    per_thread = register_estimate(spec) if registers is None else registers
    warps = spec.tile.num_warps
    if warps < 1 or num_threads(spec) > limits.max_threads_per_block or per_thread > limits.max_registers_per_thread:
        return 0
    smem = cta_smem_bytes(spec)
    if smem > limits.smem_per_block:
        return 0
    per_warp = -(-per_thread * WARP_SIZE // REGISTER_UNIT_PER_WARP) * REGISTER_UNIT_PER_WARP
    return min(
        limits.smem_per_sm // (smem + SMEM_RESERVED_PER_CTA),
        limits.registers_per_sm // per_warp // warps,
        limits.max_threads_per_sm // WARP_SIZE // warps,
        limits.max_blocks_per_sm,
    )
