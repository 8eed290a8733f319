# SPDX-License-Identifier: Apache-2.0
"""Shared memory and registers of an SM90 kernel: one producer warpgroup and up to three that compute.

A warpgroup is 4 warps, which own 64 query rows. Registers are given at launch to all warpgroups alike and then moved
from the producer to the consumers by setmaxnreg. resources.py is the caller.
"""

from __future__ import annotations

from attnsmith.codegen.limits import (
    SMEM_RESERVED_PER_CTA,
    WARP_SIZE,
    smem_aligned,
    target_limits,
)
from attnsmith.codegen.spec import KernelSpec

TARGET = "sm_90a"
"""The one target that has wgmma, TMA and setmaxnreg."""

WARPS_PER_WARPGROUP = 4
WARPGROUP_THREADS = WARP_SIZE * WARPS_PER_WARPGROUP

ROWS_PER_WARPGROUP = 64
"""Query rows of one consumer warpgroup: M of wgmma."""

VT_KEYS = 128
"""Keys per row of the transposed V: one byte each, so a row is the widest swizzle's span."""

BARRIER_BYTES = 8
TILE_RING = 2
"""Tile indices that the dynamic scheduler's producer may be ahead."""

REGISTER_STEP = 8
"""Registers per thread are given at launch, and moved by setmaxnreg, in steps of this."""

SETMAXNREG: dict[int, tuple[int, int]] = {1: (32, 216), 2: (24, 240), 3: (32, 160)}
"""Consumer warpgroups -> registers per thread of the producer and of a consumer."""

SETMAXNREG_ALONE = (32, 248)
"""One consumer warpgroup without a second CTA on the SM: all that a thread can have, from the launch on."""

SETMAXNREG_TRANSPOSING: dict[int, tuple[int, int]] = {**SETMAXNREG, 2: (40, 232)}
"""The same where the producer transposes V, which takes more than 24."""


def num_consumer_warpgroups(spec: KernelSpec) -> int:
    """Warpgroups that compute."""
    return spec.tile.num_warps // WARPS_PER_WARPGROUP


def num_threads(spec: KernelSpec) -> int:
    """Threads per CTA, the producer warpgroup included."""
    return WARPGROUP_THREADS + WARP_SIZE * spec.tile.num_warps


def transposes_v(spec: KernelSpec) -> bool:
    """True where the producer writes V transposed: 8-bit wgmma takes operands whose keys are contiguous only."""
    return spec.key.dtype.is_fp8 and not spec.key.v_is_col_major


def smem_members(spec: KernelSpec) -> dict[str, int]:
    """Bytes of each SharedStorage member, in order; `vt` and `p` only where the kernel has them.

    `q_or_o` is a slab per warpgroup: O (16 bit) is staged where that warpgroup's Q was. `vt` is V transposed, with rows
    of VT_KEYS keys; `p` has rows of whole 128-byte spans.
    """
    key, tile = spec.key, spec.tile
    element, num_warpgroups = key.dtype.num_bytes, num_consumer_warpgroups(spec)
    slab = smem_aligned(ROWS_PER_WARPGROUP * max(key.head_dim * element, key.head_dim_v * 2))
    members = {
        "q_or_o": num_warpgroups * slab,
        "k": smem_aligned(tile.num_stages * tile.block_n * key.head_dim * element),
        "v": smem_aligned(tile.num_stages * tile.block_n * key.head_dim_v * element),
    }
    if transposes_v(spec):
        members["vt"] = smem_aligned(tile.num_stages * key.head_dim_v * VT_KEYS * -(-tile.block_n // VT_KEYS))
    if tile.p_in_smem:
        members["p"] = smem_aligned(num_warpgroups * ROWS_PER_WARPGROUP * -(-tile.block_n * element // 128) * 128)
    return {**members, "control": smem_aligned(_control_bytes(spec))}


def _control_bytes(spec: KernelSpec) -> int:
    """Barriers, tile indices, and a float per query row."""
    num_stages = spec.tile.num_stages
    barriers = 2 * num_consumer_warpgroups(spec) + 4 * num_stages + 2 * TILE_RING
    barriers += 2 * (num_stages if spec.key.dtype.is_fp8 else 1)
    return BARRIER_BYTES * barriers + 4 * TILE_RING + 4 * spec.tile.block_m


def static_smem_bytes(spec: KernelSpec) -> int:
    """None: barriers and tile indices are in `control`."""
    return 0


def register_breakdown(spec: KernelSpec) -> dict[str, int]:
    """Registers per thread of a consumer by purpose, at the widest point of the key loop.

    `acc_s` and `acc_o` are 64 rows of fp32 over a warpgroup's 128 threads; `operand_p` is P beside them in its own
    width, which the PV product reads while the next scores are computed.
    """
    key, tile = spec.key, spec.tile
    parts = {"acc_s": -(-tile.block_n // 2), "acc_o": -(-key.head_dim_v // 2)}
    if not tile.p_in_smem:
        parts["operand_p"] = -(-tile.block_n * key.dtype.num_bytes // 8)
    return {**parts, "softmax": 4, "addresses": 24}


def setmaxnreg_pair(spec: KernelSpec) -> tuple[int, int]:
    """Registers per thread of the producer and of a consumer. KeyError for a num_warps that the rules refuse."""
    if num_consumer_warpgroups(spec) == min_ctas_per_sm(spec) == 1:
        return SETMAXNREG_ALONE
    table = SETMAXNREG_TRANSPOSING if transposes_v(spec) else SETMAXNREG
    return table[num_consumer_warpgroups(spec)]


def producer_registers(spec: KernelSpec) -> int:
    """What the producer keeps: setmaxnreg.dec."""
    return setmaxnreg_pair(spec)[0]


def consumer_registers(spec: KernelSpec) -> int:
    """What a consumer takes: setmaxnreg.inc."""
    return setmaxnreg_pair(spec)[1]


def register_limit(spec: KernelSpec, target: str) -> int:
    """What a consumer has after setmaxnreg."""
    return consumer_registers(spec)


def min_ctas_per_sm(spec: KernelSpec) -> int:
    """What the kernel's __launch_bounds__ ask for: 2 CTAs of one consumer warpgroup where shared memory allows them."""
    needed = 2 * (sum(smem_members(spec).values()) + SMEM_RESERVED_PER_CTA)
    return 2 if num_consumer_warpgroups(spec) == 1 and needed <= target_limits(TARGET).smem_per_sm else 1


def registers_at_launch(spec: KernelSpec) -> int:
    """Per thread at entry, for every warpgroup: the register file over the threads of the CTAs that share an SM, but no
    more than a consumer takes. KeyError for a num_warps that the rules refuse."""
    per_thread = target_limits(TARGET).registers_per_sm // (min_ctas_per_sm(spec) * num_threads(spec))
    return min(per_thread // REGISTER_STEP * REGISTER_STEP, consumer_registers(spec))
