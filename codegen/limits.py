# SPDX-License-Identifier: Apache-2.0
"""What each compile target has: shared memory, registers, threads.

Not responsible for what a spec needs of it (resources.py).
"""

from __future__ import annotations

from dataclasses import dataclass

from attnsmith.codegen.errors import SpecError
from attnsmith.codegen.spec import Arch

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
        TargetLimits(
            target="sm_90a",
            archs=(Arch.SM90,),
            gpus="H100, H200",
            smem_per_block=227 * KIB,
            smem_per_sm=228 * KIB,
            max_threads_per_sm=2048,
            max_blocks_per_sm=32,
        ),
    )
}
"""By name. Of targets that run on one device, the last is the best."""


def target_limits(target: str) -> TargetLimits:
    """The row of `target`; SpecError names the targets that exist."""
    try:
        return TARGETS[target]
    except KeyError:
        raise SpecError(
            asked=f"use target {target}",
            got=repr(target),
            allowed=", ".join(TARGETS),
            do="Pass the compile target of your GPU (A100: sm_80, RTX 30: sm_86, RTX 40: sm_89, H100: sm_90a).",
        ) from None


def smem_aligned(num_bytes: int) -> int:
    """`num_bytes` rounded up to SMEM_ALIGNMENT."""
    return -(-num_bytes // SMEM_ALIGNMENT) * SMEM_ALIGNMENT
