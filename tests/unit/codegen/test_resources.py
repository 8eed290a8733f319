# SPDX-License-Identifier: Apache-2.0
"""Shared memory, registers and occupancy of a spec, and the target table's own consistency."""

from __future__ import annotations

from dataclasses import replace

import pytest
from attnsmith.codegen.errors import SpecError
from attnsmith.codegen.registry import kernel_set
from attnsmith.codegen.resources import (
    SMEM_ALIGNMENT,
    TARGETS,
    num_threads,
    occupancy,
    register_breakdown,
    register_estimate,
    smem_bytes,
    smem_members,
    target_limits,
)

# target -> shared memory per CTA, threads per SM: CUDA programming guide, technical specifications per capability
PUBLISHED = {"sm_80": (166912, 2048), "sm_86": (101376, 1536), "sm_89": (101376, 1536), "sm_90": (232448, 2048)}


@pytest.mark.parametrize("target", TARGETS)
def test_limits_are_the_published_ones(target):
    limits = TARGETS[target]
    assert (limits.smem_per_block, limits.max_threads_per_sm) == PUBLISHED[target]
    assert limits.registers_per_sm == 65536
    assert limits.target == target


def test_contradictory_limits_are_refused():
    with pytest.raises(ValueError, match="shared memory"):
        replace(TARGETS["sm_80"], smem_per_block=TARGETS["sm_80"].smem_per_sm)
    with pytest.raises(ValueError, match="thread limits"):
        replace(TARGETS["sm_80"], max_threads_per_sm=1000)


def test_unknown_target_lists_the_known_ones():
    with pytest.raises(SpecError, match="sm_80, sm_86, sm_89, sm_90"):
        target_limits("sm_75")


@pytest.mark.parametrize(
    ("changes", "members"),
    [
        ({}, (128 * 128 * 2, 64 * 128 * 2, 64 * 128 * 2)),
        ({"num_stages": 2}, (32768, 2 * 16384, 2 * 16384)),
        ({"head_dim": 192}, (128 * 192 * 2, 64 * 192 * 2, 64 * 128 * 2)),
        ({"head_dim": 64}, (128 * 128 * 2, 64 * 64 * 2, 64 * 128 * 2)),  # O is wider than Q and shares its buffer
        ({"head_dim": 96, "head_dim_v": 96, "block_m": 16, "block_n": 16}, (3072, 3072, 3072)),
        ({"head_dim": 32, "head_dim_v": 32, "block_m": 8, "block_n": 8}, (1024, 1024, 1024)),  # rounded up from 512
    ],
    ids=["hdim128", "two-stages", "hdim192x128", "hdim64x128", "hdim96-small", "rounded-up"],
)
def test_shared_memory_by_member(make_spec, changes, members):
    spec = make_spec(**changes)
    assert tuple(smem_members(spec).values()) == members
    assert smem_bytes(spec) == sum(members)
    assert all(size % SMEM_ALIGNMENT == 0 for size in members)


def test_register_breakdown_counts_accumulators_per_thread(make_spec):
    parts = register_breakdown(make_spec())
    assert (parts["acc_s"], parts["acc_o"]) == (128 * 64 // 128, 128 * 128 // 128)
    assert register_estimate(make_spec()) == sum(parts.values()) <= 255
    assert register_estimate(make_spec(num_warps=8)) < register_estimate(make_spec())


def test_threads(make_spec):
    assert num_threads(make_spec(num_warps=8)) == 256


@pytest.mark.parametrize(
    ("changes", "registers", "target", "expected"),
    [
        ({}, 255, "sm_80", 2),  # 66 KB of 164 would allow 2, and 256 x 128 registers of 65536 allow 2
        ({"num_stages": 2}, 255, "sm_80", 1),  # 97 KB of 164
        ({"num_stages": 2}, 255, "sm_90", 2),  # 97 KB of 228
        ({"block_n": 32}, 200, "sm_86", 2),  # 49 KB of 100
        ({"head_dim": 32, "head_dim_v": 32, "block_m": 64}, 48, "sm_80", 10),  # 48 x 128 registers: 10 CTAs
        ({"head_dim": 32, "head_dim_v": 32, "block_m": 64}, 24, "sm_80", 11),  # 12 + 1 static + 1 reserved of 164 KB
        ({}, 256, "sm_80", 0),
        ({"num_stages": 4}, 255, "sm_86", 0),
        ({"num_warps": 0}, 32, "sm_80", 0),
    ],
    ids=["base", "smem-a100", "smem-h100", "smem-rtx", "registers", "smem-small", "no-regs", "no-smem", "no-warps"],
)
def test_occupancy(make_spec, changes, registers, target, expected):
    assert occupancy(make_spec(**changes), target, registers=registers) == expected


@pytest.mark.parametrize("target", TARGETS)
def test_every_default_kernel_fits_at_least_once(target):
    for spec in kernel_set("full", target):
        assert occupancy(spec, target) >= 1, spec.name
