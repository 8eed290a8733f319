# SPDX-License-Identifier: Apache-2.0
"""Default tile rows: complete, with the starting tiles among them, and ordered by sequence length."""

from __future__ import annotations

from itertools import product

import pytest
from attnsmith.codegen.errors import SpecError
from attnsmith.codegen.resources import TARGETS
from attnsmith.codegen.rules import HEAD_DIMS
from attnsmith.codegen.spec import Arch, Mask
from attnsmith.codegen.tiles import SHORT_SEQLEN_Q, default_tiles, order_for_seqlen
from attnsmith.codegen.tiles_sm80 import ROWS_SM80, target_class

BIG = {32: (128, 128, 4), 64: (128, 128, 4), 96: (128, 64, 4), 128: (128, 64, 4), 192: (128, 64, 8), 256: (128, 64, 8)}
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
    for mask in Mask:
        assert shape(rows_of(make_spec, target, head_dim, mask)[0]) == BIG[head_dim]


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


def test_unequal_head_dims_use_the_larger_ones_rows(make_spec):
    mixed = default_tiles(make_spec(head_dim=192, head_dim_v=128).key, "sm_80")
    assert mixed == default_tiles(make_spec(head_dim=192, head_dim_v=192).key, "sm_80")


def test_a_head_dim_without_rows_is_refused(make_spec):
    with pytest.raises(SpecError, match="pads_head_dim"):
        default_tiles(make_spec(head_dim=80, head_dim_v=80).key, "sm_80")


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
