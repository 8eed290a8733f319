# SPDX-License-Identifier: Apache-2.0
"""Kernel sets and selections: what is in them, how often, and what a wrong selection says."""

from __future__ import annotations

from itertools import product

import pytest
from attnsmith.codegen.errors import SpecError, UnsupportedError
from attnsmith.codegen.families import (
    DTYPES,
    HEAD_DIMS,
    head_dim_bucket,
    head_dim_pairs,
    round_head_dim,
    serving_head_dims,
)
from attnsmith.codegen.registry import KERNEL_SETS, Selection, family_of, kernel_set, serving_key
from attnsmith.codegen.resources import TARGETS
from attnsmith.codegen.spec import Arch, DType, Mask, ProblemKey
from attnsmith.codegen.tiles import default_tiles

SM80_TARGETS = [target for target in TARGETS if family_of(target) is Arch.SM80]


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


SM90_PAIRS = {(64, 64), (96, 96), (128, 128), (192, 192), (256, 256)}


@pytest.mark.parametrize("target", SM80_TARGETS)
def test_default_has_every_problem_with_every_tile(target):
    specs = kernel_set("default", target)
    for dtype, head_dim, mask in product((DType.FP16, DType.BF16), HEAD_DIMS, Mask):
        of_problem = [s for s in specs if (s.key.dtype, s.key.head_dim, s.key.mask) == (dtype, head_dim, mask)]
        rows = default_tiles(of_problem[0].key, target)
        assert [spec.tile for spec in of_problem] == [row.tile for row in rows]
    assert not any(spec.key.pads_head_dim for spec in specs)


@pytest.mark.parametrize("dtype", DTYPES[Arch.SM90], ids=lambda dtype: dtype.value)
def test_default_of_sm90_has_every_pair_with_every_tile(dtype):
    specs = [spec for spec in kernel_set("default", "sm_90a") if spec.key.dtype is dtype]
    expected = SM90_PAIRS if dtype.is_fp8 else SM90_PAIRS | {(192, 128)}
    assert {(spec.key.head_dim, spec.key.head_dim_v) for spec in specs} == expected
    for pair, mask in product(expected, Mask):
        tiles = [s.tile for s in specs if (s.key.head_dim, s.key.head_dim_v) == pair and s.key.mask is mask]
        key = ProblemKey(arch=Arch.SM90, dtype=dtype, head_dim=pair[0], head_dim_v=pair[1], mask=mask)
        assert tiles == [row.tile for row in default_tiles(key, "sm_90a")]
    assert {spec.key.out_dtype for spec in specs} == {DType.BF16 if dtype.is_fp8 else dtype}
    assert not any(spec.key.v_is_col_major or spec.key.packs_gqa for spec in specs)


@pytest.mark.parametrize("target", TARGETS)
def test_sets_contain_each_other(target):
    minimal, default, full = (set(kernel_set(name, target)) for name in ("minimal", "default", "full"))
    assert minimal < default < full


@pytest.mark.parametrize("target", SM80_TARGETS)
def test_full_adds_the_kernels_that_pad(target):
    added = set(kernel_set("full", target)) - set(kernel_set("default", target))
    assert all(spec.key.pads_head_dim for spec in added)
    assert len(added) == 2 * len(HEAD_DIMS) * 2


def test_full_of_sm90_adds_packing_column_major_and_wide_v():
    added = {spec.key for spec in kernel_set("full", "sm_90a")} - {s.key for s in kernel_set("default", "sm_90a")}
    packed = {key for key in added if key.packs_gqa}
    col_major = {key for key in added if key.v_is_col_major}
    wide = {key for key in added if key.head_dim == 64 < key.head_dim_v}
    assert len(packed) == 2 * (2 * 6 + 2 * 5) and len(col_major) == 2 * 2 * 5
    assert {(key.head_dim_v, key.dtype, key.mask) for key in wide} == set(
        product((96, 128, 192, 256), (DType.FP16, DType.BF16), Mask)
    )
    assert packed | col_major | wide == added


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


@pytest.mark.parametrize(
    ("dtype", "given", "pair"),
    [
        (DType.FP16, (1, 1), (64, 64)),
        (DType.FP16, (72, 72), (96, 96)),
        (DType.BF16, (64, 72), (64, 96)),
        (DType.BF16, (40, 200), (64, 256)),
        (DType.BF16, (65, 128), (128, 128)),
        (DType.BF16, (129, 128), (192, 128)),
        (DType.BF16, (192, 136), (192, 192)),
        (DType.BF16, (128, 256), (256, 256)),
        (DType.E4M3, (64, 96), (96, 96)),
        (DType.E5M2, (192, 128), (192, 192)),
    ],
    ids=lambda value: value.value if isinstance(value, DType) else "x".join(map(str, value)),
)
def test_sm90_serves_by_the_smallest_pair_that_covers_both(dtype, given, pair):
    assert serving_head_dims(Arch.SM90, dtype, *given) == pair
    key = serving_key(arch=Arch.SM90, dtype=dtype, head_dim=given[0], head_dim_v=given[1], mask=Mask.FULL)
    assert (key.head_dim, key.head_dim_v, key.pads_head_dim) == (*pair, False)


@pytest.mark.parametrize("dtype", DTYPES[Arch.SM90], ids=lambda dtype: dtype.value)
@pytest.mark.parametrize("arch", Arch)
def test_no_smaller_pair_would_serve(arch, dtype):
    for given in product(range(1, 257, 17), range(1, 257, 17)):
        pair = serving_head_dims(arch, dtype, *given)
        fitting = [p for p in head_dim_pairs(arch, dtype) if p[0] >= given[0] and p[1] >= given[1]]
        assert pair in fitting and sum(pair) == min(map(sum, fitting))


@pytest.mark.parametrize("given", [(0, 64), (64, 257), (-8, 64)])
def test_sm90_head_dims_outside_the_kernels_are_refused(given):
    with pytest.raises(SpecError, match="allowed: 1 to 256"):
        serving_head_dims(Arch.SM90, DType.E4M3, *given)


def test_head_dims_are_rounded_to_16_bytes():
    assert [round_head_dim(72, dtype) for dtype in (DType.BF16, DType.E4M3)] == [72, 80]
    assert round_head_dim(1) == 8


def test_packing_is_asked_of_sm90_alone():
    problem = {"dtype": DType.BF16, "head_dim": 64, "head_dim_v": 64, "mask": Mask.FULL, "packs_gqa": True}
    assert serving_key(arch=Arch.SM90, **problem).packs_gqa
    assert not serving_key(arch=Arch.SM80, **problem).packs_gqa


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


def test_selection_for_sm90_sets_options_of_the_key_and_the_tile():
    problem = {"dtypes": [DType.E4M3], "head_dims": [100], "masks": [Mask.CAUSAL]}
    options = {"tile": {"is_ping_pong": False}, "key": {"out_dtype": DType.FP16, "packs_gqa": True}}
    specs = Selection(target="sm_90a", **problem, **options).to_specs()
    name = "fwd_sm90_e4m3_fp16_hdim128_causal_packgqa_128x224_w8_s2_dynamic_overlap_rescale"
    assert [spec.name for spec in specs] == [name]


def test_selection_without_restriction_is_the_default_set_of_sm90():
    assert Selection(target="sm_90a").to_specs() == kernel_set("default", "sm_90a")


def test_an_option_that_sm80_lacks_is_refused_not_ignored():
    with pytest.raises(SpecError, match="need SM90"):
        names(head_dims=[64], key={"packs_gqa": True})


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
