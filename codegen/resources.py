# SPDX-License-Identifier: Apache-2.0
"""What a spec needs of its compile target: shared memory, registers, threads, and how many CTAs an SM then holds.

The shared-memory formula is the Python side of the rendered `static_assert(sizeof(SharedStorage) == ...)`. The formulas
are each family's (resources_sm80.py, resources_sm90.py). Not responsible for saying what is legal: rules.py compares.
"""

from __future__ import annotations

from typing import Protocol

from attnsmith.codegen import resources_sm80, resources_sm90
from attnsmith.codegen.limits import (
    KIB,
    REGISTER_UNIT_PER_WARP,
    SMEM_ALIGNMENT,
    SMEM_RESERVED_PER_CTA,
    TARGETS,
    WARP_SIZE,
    TargetLimits,
    target_limits,
)
from attnsmith.codegen.spec import Arch, KernelSpec

__all__ = [
    "KIB",
    "SMEM_ALIGNMENT",
    "TARGETS",
    "WARP_SIZE",
    "TargetLimits",
    "cta_smem_bytes",
    "entry_registers",
    "num_threads",
    "occupancy",
    "register_breakdown",
    "register_estimate",
    "register_limit",
    "smem_bytes",
    "smem_members",
    "static_smem_bytes",
    "target_limits",
]


class _Family(Protocol):
    """What each family's module has."""

    def num_threads(self, spec: KernelSpec, /) -> int: ...

    def smem_members(self, spec: KernelSpec, /) -> dict[str, int]: ...

    def static_smem_bytes(self, spec: KernelSpec, /) -> int: ...

    def register_breakdown(self, spec: KernelSpec, /) -> dict[str, int]: ...

    def register_limit(self, spec: KernelSpec, target: str, /) -> int: ...

    def registers_at_launch(self, spec: KernelSpec, /) -> int: ...


_FAMILIES: dict[Arch, _Family] = {Arch.SM80: resources_sm80, Arch.SM90: resources_sm90}


def num_threads(spec: KernelSpec) -> int:
    """Threads per CTA."""
    return _FAMILIES[spec.key.arch].num_threads(spec)


def smem_members(spec: KernelSpec) -> dict[str, int]:
    """Bytes of each SharedStorage member by its C++ name, rounded up to SMEM_ALIGNMENT."""
    return _FAMILIES[spec.key.arch].smem_members(spec)


def smem_bytes(spec: KernelSpec) -> int:
    """Dynamic shared memory of one CTA in bytes; equals sizeof(SharedStorage) of the rendered kernel."""
    return sum(smem_members(spec).values())


def static_smem_bytes(spec: KernelSpec) -> int:
    """Static shared memory of one CTA in bytes, the gap to SharedStorage included."""
    return _FAMILIES[spec.key.arch].static_smem_bytes(spec)


def cta_smem_bytes(spec: KernelSpec) -> int:
    """What a CTA takes of the SM's shared memory in bytes, static part included: what the limits apply to."""
    return smem_bytes(spec) + static_smem_bytes(spec)


def register_breakdown(spec: KernelSpec) -> dict[str, int]:
    """32-bit registers per computing thread by purpose, at the widest point of the key loop."""
    return _FAMILIES[spec.key.arch].register_breakdown(spec)


def register_estimate(spec: KernelSpec) -> int:
    """Planned 32-bit registers per computing thread; the sum of `register_breakdown`.

    A necessary condition, used to refuse tiles that must spill. What ptxas really took is in `attnsmith inspect`.
    """
    return sum(register_breakdown(spec).values())


def register_limit(spec: KernelSpec, target: str) -> int:
    """Registers that a computing thread can have: the target's, or a consumer's after setmaxnreg (SM90)."""
    return _FAMILIES[spec.key.arch].register_limit(spec, target)


def entry_registers(spec: KernelSpec) -> int:
    """Registers per thread that a CTA is launched with, planned: what decides how many CTAs an SM holds."""
    return _FAMILIES[spec.key.arch].registers_at_launch(spec)


def occupancy(spec: KernelSpec, target: str, *, registers: int | None = None) -> int:
    """CTAs that fit one SM of `target` at once; 0 when not even one does.

    `registers` per thread is what ptxas reported, or `entry_registers` when None.
    """
    limits = target_limits(target)
    if spec.tile.num_warps < 1 or num_threads(spec) > limits.max_threads_per_block:
        return 0
    per_thread = entry_registers(spec) if registers is None else registers
    smem = cta_smem_bytes(spec)
    if smem > limits.smem_per_block or per_thread > limits.max_registers_per_thread:
        return 0
    warps = num_threads(spec) // WARP_SIZE
    per_warp = -(-per_thread * WARP_SIZE // REGISTER_UNIT_PER_WARP) * REGISTER_UNIT_PER_WARP
    return min(
        limits.smem_per_sm // (smem + SMEM_RESERVED_PER_CTA),
        limits.registers_per_sm // per_warp // warps,
        limits.max_threads_per_sm // WARP_SIZE // warps,
        limits.max_blocks_per_sm,
    )
