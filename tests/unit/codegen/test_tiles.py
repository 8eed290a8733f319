# SPDX-License-Identifier: Apache-2.0
"""Default tile rows: complete, with the starting tiles among them, and ordered by sequence length."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import product

import pytest
from attnsmith.codegen.errors import SpecError
from attnsmith.codegen.registry import kernel_set
from attnsmith.codegen.resources import TARGETS, register_breakdown, smem_bytes
from attnsmith.codegen.rules import HEAD_DIMS
from attnsmith.codegen.spec import Arch, DType, KernelSpec, Mask, ProblemKey, Scheduler
from attnsmith.codegen.tiles import SHORT_SEQLEN_Q, default_tiles, order_for_seqlen
from attnsmith.codegen.tiles_sm80 import ROWS_SM80, SPILLING, target_class

BIG = {32: (128, 128, 4), 64: (128, 128, 4), 96: (128, 64, 4), 128: (128, 64, 4), 192: (128, 64, 8), 256: (128, 64, 8)}
UNSPILLED = {64: (128, 64, 4), 128: (128, 128, 8)}  # on sm_90, where ptxas spills BIG's
SM80_TARGETS = [target for target, limits in TARGETS.items() if Arch.SM80 in limits.archs]
CASES = list(product(SM80_TARGETS, HEAD_DIMS, Mask))
IDS = [f"{target}-hdim{head_dim}-{mask.value}" for target, head_dim, mask in CASES]


def rows_of(make_spec, target, head_dim, mask):
    key = make_spec(head_dim=head_dim, head_dim_v=head_dim, mask=mask).key
    return default_tiles(key, target)


def shape(row):
    return row.tile.block_m, row.tile.block_n, row.tile.num_warps


@pytest.mark.parametrize(("target", "head_dim", "mask"), CASES, ids=IDS)
def test_at_least_two_different_tiles_with_reasons(make_spec, target, head_dim, mask):
    rows = rows_of(make_spec, target, head_dim, mask)
    assert len({row.tile for row in rows}) == len(rows) >= 2
    assert all(len(row.reason) > 10 for row in rows)


@pytest.mark.parametrize(("target", "head_dim", "mask"), CASES, ids=IDS)
def test_the_best_tile_has_no_length_limit(make_spec, target, head_dim, mask):
    assert rows_of(make_spec, target, head_dim, mask)[0].max_seqlen_q is None


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
def test_starting_tile_comes_first_on_a100_and_hopper(make_spec, target, head_dim):
    expected = {**BIG, **(UNSPILLED if target == "sm_90" else {})}
    for mask in Mask:
        assert shape(rows_of(make_spec, target, head_dim, mask)[0]) == expected[head_dim]


@pytest.mark.parametrize("target", ["sm_86", "sm_89"])
def test_starting_tiles_of_consumer_cards(make_spec, target):
    assert shape(rows_of(make_spec, target, 128, Mask.FULL)[0]) == (128, 32, 4)
    assert shape(rows_of(make_spec, target, 128, Mask.CAUSAL)[0]) == (64, 64, 4)
    for head_dim in (192, 256):
        first = rows_of(make_spec, target, head_dim, Mask.FULL)[0]
        assert shape(first)[:2] < BIG[head_dim][:2], "smaller than on A100"


def test_table_has_a_row_for_every_class_and_head_dim():
    classes = {target_class(target) for target in SM80_TARGETS}
    assert set(ROWS_SM80) == set(product(classes, HEAD_DIMS))


def test_tiles_that_spill_on_a_target_are_left_out_there(make_spec):
    for head_dim, label in SPILLING["sm_90"]:
        for mask in Mask:
            labels = [[row.tile.label for row in rows_of(make_spec, t, head_dim, mask)] for t in ("sm_80", "sm_90")]
            assert label in labels[0] and labels[1] == [other for other in labels[0] if other != label]


def test_unequal_head_dims_use_the_larger_ones_rows(make_spec):
    mixed = default_tiles(make_spec(head_dim=192, head_dim_v=128).key, "sm_80")
    assert mixed == default_tiles(make_spec(head_dim=192, head_dim_v=192).key, "sm_80")


def test_a_head_dim_without_rows_is_refused(make_spec):
    with pytest.raises(SpecError, match="pads_head_dim"):
        default_tiles(make_spec(head_dim=80, head_dim_v=80).key, "sm_80")


SM90_KEYS = sorted({spec.key for spec in kernel_set("full", "sm_90a")}, key=str)


def key_id(key):
    flags = "-vcol" * key.v_is_col_major + "-packed" * key.packs_gqa
    return f"{key.dtype.value}-{key.head_dim}x{key.head_dim_v}-{key.mask.value}{flags}"


@pytest.mark.parametrize("key", SM90_KEYS, ids=key_id)
def test_sm90_rows_are_persistent_long_ones_then_a_short_one(key):
    rows = default_tiles(key, "sm_90a")
    is_short = [row.max_seqlen_q is not None for row in rows]
    no_short = key.v_is_col_major and key.head_dim == 256  # S of 128 keys and O exceed one warpgroup's 216 registers
    assert is_short == sorted(is_short) and not is_short[0] and is_short[-1] != no_short
    for row in rows:
        tile = row.tile
        assert len(row.reason) > 10 and tile.overlaps_softmax
        assert tile.skips_rescale != key.dtype.is_fp8
        assert tile.is_ping_pong == (tile.num_warps > 4)
        long = Scheduler.STATIC if key.mask is Mask.FULL else Scheduler.DYNAMIC
        assert tile.scheduler is (Scheduler.SINGLE if row.max_seqlen_q else long)
        if row.max_seqlen_q:
            assert (tile.block_m, row.max_seqlen_q) == (64, SHORT_SEQLEN_Q)


def test_packing_does_not_change_the_tile():
    for key in SM90_KEYS:
        assert default_tiles(replace(key, packs_gqa=True), "sm_90a") == default_tiles(key, "sm_90a")


STARTING = {  # (is 8-bit, head_dim, head_dim_v) -> block_m x block_n of full and causal
    (False, 64, 64): ((192, 128), (192, 128)),
    (False, 96, 96): ((128, 192), (128, 128)),
    (False, 128, 128): ((128, 192), (128, 128)),
    (False, 192, 192): ((128, 112), (128, 112)),
    (False, 192, 128): ((128, 128), (128, 128)),
    (False, 256, 256): ((128, 80), (128, 80)),
    (True, 64, 64): ((192, 160), (192, 160)),
    (True, 96, 96): ((192, 128), (192, 128)),
    (True, 128, 128): ((128, 224), (128, 224)),
}


@pytest.mark.parametrize("case", STARTING, ids=lambda case: f"{'e4m3' if case[0] else 'bf16'}-{case[1]}x{case[2]}")
def test_starting_tile_comes_first_on_sm90(case):
    is_fp8, head_dim, head_dim_v = case
    for mask, expected in zip((Mask.FULL, Mask.CAUSAL), STARTING[case], strict=True):
        dtype = DType.E4M3 if is_fp8 else DType.BF16
        key = ProblemKey(arch=Arch.SM90, dtype=dtype, head_dim=head_dim, head_dim_v=head_dim_v, mask=mask)
        tile = default_tiles(key, "sm_90a")[0].tile
        assert (tile.block_m, tile.block_n) == expected
        assert not tile.p_in_smem


@pytest.mark.parametrize("key", SM90_KEYS, ids=key_id)
def test_numbers_in_sm90_reasons_are_the_tiles(key):
    """ "N KB" is the tile's shared memory unless it is compared ("of"), and S, O and P its registers."""
    for row in default_tiles(key, "sm_90a"):
        spec = KernelSpec(key=key, tile=row.tile)
        sizes = [int(number) for number in re.findall(r"(?<!the )\b(\d+) KB(?! of an SM)", row.reason)]
        assert all(size == smem_bytes(spec) // 1024 for size in sizes), (row.reason, smem_bytes(spec) // 1024)
        parts = register_breakdown(spec)
        named = {"S": parts["acc_s"], "O": parts["acc_o"], "P": parts.get("operand_p")}
        for letter, number in re.findall(r"\b([SOP]) (?:is )?(\d+)", row.reason):
            assert named[letter] == int(number), (row.reason, parts)


def test_an_sm90_pair_without_rows_names_those_that_have_some(make_sm90_spec):
    with pytest.raises(SpecError, match=r"\(64, 64\).*\(256, 256\).*Use a pair that covers both"):
        default_tiles(make_sm90_spec(head_dim=32, head_dim_v=32).key, "sm_90a")


@pytest.mark.parametrize(("seqlen_q", "is_short"), [(1, True), (SHORT_SEQLEN_Q, True), (SHORT_SEQLEN_Q + 1, False)])
def test_short_queries_put_the_limited_row_first(make_spec, seqlen_q, is_short):
    rows = rows_of(make_spec, "sm_80", 128, Mask.FULL)
    ordered = order_for_seqlen(rows, seqlen_q)
    assert sorted(map(shape, ordered)) == sorted(map(shape, rows))
    assert (ordered[0].max_seqlen_q is not None) == is_short
    assert (ordered[-1].max_seqlen_q is None) == is_short, "a row whose limit does not hold comes last"


def test_unknown_length_means_a_long_one(make_spec):
    rows = rows_of(make_spec, "sm_80", 64, Mask.CAUSAL)
    assert order_for_seqlen(rows, None) == order_for_seqlen(rows, 1 << 40)
