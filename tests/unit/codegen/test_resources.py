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
    entry_registers,
    num_threads,
    occupancy,
    register_breakdown,
    register_estimate,
    smem_bytes,
    smem_members,
    static_smem_bytes,
    target_limits,
)
from attnsmith.codegen.resources_sm90 import min_ctas_per_sm, setmaxnreg_pair
from attnsmith.codegen.spec import DType

# target -> shared memory per CTA, threads per SM: CUDA programming guide, technical specifications per capability
PUBLISHED = {"sm_80": (166912, 2048), "sm_86": (101376, 1536), "sm_89": (101376, 1536), "sm_90": (232448, 2048)}
PUBLISHED["sm_90a"] = PUBLISHED["sm_90"]


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
    with pytest.raises(SpecError, match="sm_80, sm_86, sm_89, sm_90, sm_90a"):
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


SLAB = 64 * 128 * 2
SM90_MEMBERS = {
    "hdim128": ({}, {"q_or_o": 2 * SLAB, "k": 2 * 128 * 256, "v": 2 * 128 * 256, "control": 1024}),
    "three-warpgroups": (
        {"block_m": 192, "num_warps": 12, "head_dim": 64, "head_dim_v": 64},
        {"q_or_o": 3 * 64 * 64 * 2, "k": 2 * 128 * 128, "v": 2 * 128 * 128, "control": 1024},
    ),
    "wide-v": (
        {"head_dim": 64, "head_dim_v": 192, "num_stages": 1},
        {"q_or_o": 2 * 64 * 192 * 2, "k": 128 * 128, "v": 128 * 384, "control": 1024},
    ),
    "p-in-smem": (
        {"block_n": 144, "p_in_smem": True},
        {"q_or_o": 2 * SLAB, "k": 2 * 144 * 256, "v": 2 * 144 * 256, "p": 2 * 64 * 3 * 128, "control": 1024},
    ),
    "e4m3": (  # O has 16 bits, so its slab is twice Q's; V is transposed into rows of 2 x 128 keys
        {"dtype": DType.E4M3, "block_n": 160},
        {"q_or_o": 2 * SLAB, "k": 2 * 160 * 128, "v": 2 * 160 * 128, "vt": 2 * 128 * 256, "control": 1024},
    ),
    "e4m3-vcol": (
        {"dtype": DType.E4M3, "v_is_col_major": True},
        {"q_or_o": 2 * SLAB, "k": 2 * 128 * 128, "v": 2 * 128 * 128, "control": 1024},
    ),
}


@pytest.mark.parametrize("case", SM90_MEMBERS)
def test_sm90_shared_memory_by_member(make_sm90_spec, case):
    changes, members = SM90_MEMBERS[case]
    spec = make_sm90_spec(**changes)
    assert list(smem_members(spec).items()) == list(members.items())
    assert smem_bytes(spec) == sum(members.values()) and static_smem_bytes(spec) == 0
    assert all(size % SMEM_ALIGNMENT == 0 for size in members.values())


@pytest.mark.parametrize(
    ("num_warps", "dtype", "threads", "at_entry", "producer", "consumer"),
    [
        (4, DType.E4M3, 256, 128, 32, 216),
        (8, DType.BF16, 384, 168, 24, 240),
        (8, DType.E4M3, 384, 168, 40, 232),
        (12, DType.BF16, 512, 128, 32, 160),
        (12, DType.E5M2, 512, 128, 32, 160),
    ],
)
def test_sm90_registers_move_from_producer_to_consumers(
    make_sm90_spec, num_warps, dtype, threads, at_entry, producer, consumer
):
    spec = make_sm90_spec(num_warps=num_warps, block_m=16 * num_warps, dtype=dtype)
    assert (num_threads(spec), entry_registers(spec)) == (threads, at_entry)
    assert setmaxnreg_pair(spec) == (producer, consumer)
    assert producer * 128 + consumer * 32 * num_warps <= at_entry * threads, "more than the CTA was given"
    assert all(count % 8 == 0 and 24 <= count <= 256 for count in (producer, consumer)), "setmaxnreg's operand"


def test_a_single_warpgroup_without_a_neighbour_has_its_registers_from_the_start(make_sm90_spec):
    """128 keys of head_dim 192 leave no shared memory for a second CTA, so ptxas may use all that a consumer takes."""
    spec = make_sm90_spec(num_warps=4, block_m=64, head_dim=192)
    assert (min_ctas_per_sm(spec), entry_registers(spec), occupancy(spec, "sm_90a")) == (1, 248, 1)
    assert setmaxnreg_pair(spec) == (32, 248)


def test_a_column_major_v_leaves_the_producer_little_to_do(make_sm90_spec):
    assert setmaxnreg_pair(make_sm90_spec(dtype=DType.E4M3, v_is_col_major=True)) == (24, 240)


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({}, {"acc_s": 64, "acc_o": 64, "operand_p": 32, "softmax": 4, "addresses": 24}),
        ({"block_n": 144, "p_in_smem": True}, {"acc_s": 72, "acc_o": 64, "softmax": 4, "addresses": 24}),
        (
            {"dtype": DType.E4M3, "block_n": 224},
            {"acc_s": 112, "acc_o": 64, "operand_p": 28, "softmax": 4, "addresses": 24},
        ),
    ],
    ids=["bf16", "p-in-smem", "e4m3"],
)
def test_sm90_register_breakdown(make_sm90_spec, changes, parts):
    assert register_breakdown(make_sm90_spec(**changes)) == parts


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, 1),  # 168 x 384 registers leave none for a second CTA
        ({"block_m": 192, "num_warps": 12, "head_dim": 64, "head_dim_v": 64}, 1),
        ({"block_m": 64, "num_warps": 4, "block_n": 96}, 2),  # 2 x (113 + 1) KB are exactly an SM's 228
        ({"block_m": 64, "num_warps": 4, "block_n": 112}, 1),
        ({"block_m": 64, "num_warps": 4, "head_dim": 64, "head_dim_v": 64}, 2),  # 3 by shared memory, 2 by registers
    ],
    ids=["two-warpgroups", "three", "one-fits-twice", "one-by-smem", "one-by-registers"],
)
def test_sm90_occupancy(make_sm90_spec, changes, expected):
    spec = make_sm90_spec(**changes)
    assert occupancy(spec, "sm_90a") == expected == min_ctas_per_sm(spec)


@pytest.mark.parametrize("target", TARGETS)
def test_every_default_kernel_fits_at_least_once(target):
    for spec in kernel_set("full", target):
        assert occupancy(spec, target) >= 1, spec.name
