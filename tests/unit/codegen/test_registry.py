# SPDX-License-Identifier: Apache-2.0
"""Kernel sets and selections: what is in them, how often, and what a wrong selection says."""

from __future__ import annotations

from itertools import product

import pytest
from attnsmith.codegen.errors import SpecError, UnsupportedError
from attnsmith.codegen.families import head_dim_bucket, round_head_dim
from attnsmith.codegen.registry import KERNEL_SETS, Selection, kernel_set, serving_key
from attnsmith.codegen.resources import TARGETS
from attnsmith.codegen.rules import HEAD_DIMS
from attnsmith.codegen.spec import Arch, DType, Mask
from attnsmith.codegen.tiles import default_tiles


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", KERNEL_SETS)
def test_no_duplicates_and_a_stable_order(name, target):
    specs = kernel_set(name, target)
    assert len(set(specs)) == len(specs) == len({spec.name for spec in specs})
    kernel_set.cache_clear()
    assert kernel_set(name, target) == specs


@pytest.mark.parametrize("target", TARGETS)
def test_minimal_is_the_best_tile_of_eight_problems(target):
    specs = kernel_set("minimal", target)
    problems = {(spec.key.dtype, spec.key.head_dim, spec.key.mask) for spec in specs}
    assert problems == set(product((DType.FP16, DType.BF16), (64, 128), Mask))
    assert all(spec.tile == default_tiles(spec.key, target)[0].tile for spec in specs)


@pytest.mark.parametrize("target", TARGETS)
def test_default_has_every_problem_with_every_tile(target):
    specs = kernel_set("default", target)
    for dtype, head_dim, mask in product((DType.FP16, DType.BF16), HEAD_DIMS, Mask):
        of_problem = [s for s in specs if (s.key.dtype, s.key.head_dim, s.key.mask) == (dtype, head_dim, mask)]
        rows = default_tiles(of_problem[0].key, target)
        assert [spec.tile for spec in of_problem] == [row.tile for row in rows]
    assert not any(spec.key.pads_head_dim for spec in specs)


@pytest.mark.parametrize("target", TARGETS)
def test_sets_contain_each_other(target):
    minimal, default, full = (set(kernel_set(name, target)) for name in ("minimal", "default", "full"))
    assert minimal < default < full
    assert all(spec.key.pads_head_dim for spec in full - default)
    assert len(full - default) == 2 * len(HEAD_DIMS) * 2


def test_unknown_set_lists_the_sets():
    with pytest.raises(SpecError, match="minimal, default, full"):
        kernel_set("everything", "sm_80")


@pytest.mark.parametrize(
    ("head_dim", "bucket"), [(1, 32), (32, 32), (33, 64), (40, 64), (80, 96), (160, 192), (193, 256), (256, 256)]
)
def test_bucket_is_the_next_kernel(head_dim, bucket):
    assert head_dim_bucket(head_dim) == bucket


@pytest.mark.parametrize("head_dim", [-8, 0, 257, 512])
def test_head_dims_outside_the_kernels_are_refused(head_dim):
    with pytest.raises(SpecError, match="allowed: 1 to 256"):
        head_dim_bucket(head_dim)


@pytest.mark.parametrize(
    ("head_dim", "head_dim_v", "pads"),
    [(64, 64, False), (60, 64, False), (40, 40, True), (192, 128, False), (64, 40, True)],
)
def test_serving_key_pads_only_where_no_kernel_is_exact(head_dim, head_dim_v, pads):
    """head_dim 60 is copied into rows of 64 by the host (60 % 8 != 0), which the exact kernel then reads."""
    key = serving_key(arch=Arch.SM80, dtype=DType.FP16, head_dim=head_dim, head_dim_v=head_dim_v, mask=Mask.FULL)
    assert key.pads_head_dim == pads
    assert key.head_dim >= round_head_dim(head_dim) and key.head_dim_v >= round_head_dim(head_dim_v)


def names(**fields):
    return [spec.name for spec in Selection(target="sm_80", **fields).to_specs()]


def test_selection_without_restriction_is_the_default_set():
    assert Selection(target="sm_80").to_specs() == kernel_set("default", "sm_80")


def test_selection_of_a_set_filters_it():
    assert names(set_name="minimal", dtypes=[DType.BF16], head_dims=[128], masks=[Mask.CAUSAL]) == [
        "fwd_sm80_bf16_hdim128_causal_128x64_w4_s1"
    ]


def test_selection_by_tile_changes_the_best_tile():
    assert names(dtypes=[DType.BF16], head_dims=[64], masks=[Mask.FULL], tile={"block_n": 96, "num_stages": 2}) == [
        "fwd_sm80_bf16_hdim64_full_128x96_w4_s2"
    ]


def test_selection_by_tile_from_a_set_filters():
    assert set(names(set_name="default", tile={"num_stages": 2})) == {
        spec.name for spec in kernel_set("default", "sm_80") if spec.tile.num_stages == 2
    }


def test_selection_of_another_head_dim_takes_the_kernel_that_serves_it():
    first = names(dtypes=[DType.FP16], head_dims=[80], masks=[Mask.FULL])[0]
    assert first == "fwd_sm80_fp16_hdim96pad_full_128x64_w4_s1"
    assert names(dtypes=[DType.FP16], head_dims=[192], head_dims_v=[128], masks=[Mask.FULL])[0].startswith(
        "fwd_sm80_fp16_hdim192x128_full_128x64_w8"
    )


@pytest.mark.parametrize(
    ("fields", "error", "words"),
    [
        ({"dtypes": [DType.E4M3]}, UnsupportedError, "no FP8 MMA"),
        ({"head_dims": [264]}, SpecError, "1 to 256"),
        ({"head_dims": [128], "tile": {"block_n": 256}}, SpecError, "registers per thread"),
        ({"set_name": "minimal", "head_dims": [32]}, SpecError, "Leave an option out"),
        ({"set_name": "nope"}, SpecError, "minimal, default, full"),
    ],
    ids=["fp8", "head-dim", "tile", "no-match", "set"],
)
def test_wrong_selections_say_what_to_do(fields, error, words):
    with pytest.raises(error, match=words):
        names(**fields)
