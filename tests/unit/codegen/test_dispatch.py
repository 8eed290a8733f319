# SPDX-License-Identifier: Apache-2.0
"""The packed key, the candidates of a problem, entries and their order, and the manifest."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from itertools import product

import pytest
from attnsmith.codegen.dispatch import (
    FIELDS,
    candidate_keys,
    candidate_specs,
    choose,
    entry,
    field_shifts,
    manifest,
    pack_key,
    render_dispatch_header,
    spec_for,
    unpack_key,
)
from attnsmith.codegen.errors import SpecError, UnsupportedError
from attnsmith.codegen.registry import kernel_set
from attnsmith.codegen.resources import TARGETS
from attnsmith.codegen.rules import HEAD_DIMS, is_legal
from attnsmith.codegen.spec import Arch, DType, Mask, Op, ProblemKey, Scheduler

ALL_KEYS = [
    ProblemKey(
        op=op, arch=arch, dtype=dtype, head_dim=d, head_dim_v=dv, mask=mask, pads_head_dim=flags[0],
        out_dtype=out, v_is_col_major=flags[1], packs_gqa=flags[2],
    )
    for op, arch, dtype, d, dv, mask, out in product(Op, Arch, DType, HEAD_DIMS, HEAD_DIMS, Mask, DType)
    for flags in product((False, True), repeat=3)
]  # fmt: skip


def test_packed_keys_are_distinct_non_zero_and_invertible():
    packed = [pack_key(key) for key in ALL_KEYS]
    assert len(set(packed)) == len(ALL_KEYS)
    assert all(0 < value < 1 << 64 for value in packed)
    assert [unpack_key(value) for value in packed] == ALL_KEYS


def test_published_codes_keep_their_meaning():
    """Written out by hand: libraries built earlier carry these numbers (of kernel table version 2)."""
    key = ProblemKey(arch=Arch.SM80, dtype=DType.BF16, head_dim=128, head_dim_v=64, mask=Mask.CAUSAL)
    assert pack_key(key) == 1 | 1 << 4 | 2 << 8 | (128 // 8) << 12 | (64 // 8) << 20 | 2 << 28 | 0 << 32 | 2 << 33
    key = replace(key, dtype=DType.E4M3, out_dtype=DType.FP16, v_is_col_major=True, packs_gqa=True, arch=Arch.SM90)
    assert pack_key(key) == 1 | 2 << 4 | 3 << 8 | 16 << 12 | 8 << 20 | 2 << 28 | 0 << 32 | 1 << 33 | 1 << 37 | 1 << 38


def test_fields_are_the_key_and_fit_64_bits():
    assert [field.name for field in FIELDS] == [field.name for field in fields(ProblemKey)]
    shifts = field_shifts()
    assert shifts[FIELDS[-1].name] + FIELDS[-1].bits <= 64
    enums = {"op": Op, "arch": Arch, "dtype": DType, "mask": Mask, "out_dtype": DType}
    for field in FIELDS:
        assert field.enum is enums.get(field.name)
        if field.enum:
            assert {name for name, _ in field.values} == {member.value for member in field.enum}
            codes = [code for _, code in field.values]
            assert len(set(codes)) == len(codes) and min(codes) > 0 and max(codes) < 1 << field.bits


@pytest.mark.parametrize("packed", [0, 1 << 63, 15], ids=["zero", "beyond", "unknown-op"])
def test_a_number_that_is_no_key_is_refused(packed):
    with pytest.raises(ValueError, match="packed key"):
        unpack_key(packed)


@pytest.mark.parametrize("head_dim", [4, -8, 2048])
def test_a_head_dim_that_cannot_be_packed_is_refused(make_spec, head_dim):
    with pytest.raises(ValueError, match="head_dim"):
        pack_key(make_spec(head_dim=head_dim).key)


def test_header_has_the_same_shifts_and_codes():
    text = render_dispatch_header()
    for field in FIELDS:
        scale = f" / {field.unit}" if field.unit != 1 else ""
        assert f"static_cast<uint64_t>(key.{field.name}{scale}) << {field_shifts()[field.name]};" in text
        for name, code in field.values:
            assert f"k{name.capitalize()} = {code}," in text
    assert "{{" not in text and "{%" not in text
    assert text.count("enum class DType") == 1 and "  DType out_dtype;" in text


def problem(**changes):
    return {"dtype": DType.BF16, "head_dim": 128, "mask": Mask.FULL, "target": "sm_80", **changes}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, [(128, 128, False), (128, 128, True)]),
        ({"head_dim": 121}, [(128, 128, False), (128, 128, True)]),
        ({"head_dim": 80}, [(96, 96, True)]),
        ({"head_dim": 192, "head_dim_v": 128}, [(192, 128, False), (192, 128, True)]),
        ({"head_dim": 64, "head_dim_v": 72}, [(64, 96, True)]),
    ],
    ids=["exact", "host-padded", "between", "unequal", "one-between"],
)
def test_candidate_keys_exact_then_padding(changes, expected):
    keys = candidate_keys(**problem(**changes))
    assert [(key.head_dim, key.head_dim_v, key.pads_head_dim) for key in keys] == expected


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("head_dim", [1, 8, 40, 64, 100, 128, 136, 192, 256])
def test_every_candidate_serves_and_is_legal(target, head_dim):
    for mask, seqlen_q in product(Mask, (None, 1, 4096)):
        specs = candidate_specs(dtype=DType.FP16, head_dim=head_dim, mask=mask, target=target, seqlen_q=seqlen_q)
        assert len(specs) == len(set(specs)) >= 2
        for spec in specs:
            assert is_legal(spec, target)
            assert spec.key.mask is mask and spec.key.head_dim >= head_dim
            if spec.key.arch is Arch.SM80:
                assert spec.key.pads_head_dim or spec.key.head_dim == -(-head_dim // 8) * 8
        assert specs[0] == spec_for(dtype=DType.FP16, head_dim=head_dim, mask=mask, target=target, seqlen_q=seqlen_q)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, [(128, 128, False)]),
        ({"head_dim": 40}, [(64, 64, False)]),
        ({"head_dim": 64, "head_dim_v": 72}, [(64, 96, False)]),
        ({"packs_gqa": True}, [(128, 128, True), (128, 128, False)]),
        ({"dtype": DType.E5M2, "head_dim": 160, "packs_gqa": True}, [(192, 192, True), (192, 192, False)]),
    ],
    ids=["exact", "filled", "pair", "packed", "fp8"],
)
def test_sm90_candidate_keys_packed_then_plain(changes, expected):
    keys = candidate_keys(**problem(target="sm_90a", **changes))
    assert [(key.head_dim, key.head_dim_v, key.packs_gqa) for key in keys] == expected
    assert all(key.arch is Arch.SM90 and not key.pads_head_dim for key in keys)


def test_the_form_of_v_and_the_output_are_the_keys(make_spec):
    fp8 = problem(target="sm_90a", dtype=DType.E4M3)
    assert {key.out_dtype for key in candidate_keys(**fp8)} == {DType.BF16}
    (key,) = candidate_keys(**fp8, out_dtype=DType.FP16, v_is_col_major=True)
    assert key.out_dtype is DType.FP16 and key.v_is_col_major
    assert spec_for(**fp8, v_is_col_major=True).tile.block_n == 128
    assert spec_for(**fp8).tile.block_n == 224


def test_packing_is_ignored_where_no_kernel_packs():
    assert candidate_specs(**problem(packs_gqa=True)) == candidate_specs(**problem())


def test_short_queries_get_a_64_row_tile():
    assert spec_for(**problem(seqlen_q=1)).tile.block_m == 64
    assert spec_for(**problem(seqlen_q=65)).tile.block_m == 128
    assert spec_for(**problem()).tile.block_m == 128


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"head_dim": 257}, SpecError, "1 to 256"),
        ({"head_dim_v": 0}, SpecError, "1 to 256"),
        ({"dtype": DType.E4M3}, UnsupportedError, "no FP8"),
        ({"dtype": DType.E4M3, "target": "sm_90"}, UnsupportedError, "FP8 needs SM90"),
        ({"dtype": DType.BF16, "target": "sm_90a", "out_dtype": DType.FP16}, SpecError, "allowed: bf16"),
        ({"dtype": DType.BF16, "target": "sm_90a", "v_is_col_major": True}, SpecError, "row-major"),
        ({"target": "sm_75"}, SpecError, "sm_80"),
    ],
    ids=["head-dim", "head-dim-v", "fp8", "fp8-sm90", "out-dtype", "v-col-major", "target"],
)
def test_problems_that_no_kernel_serves_say_why(changes, error, words):
    with pytest.raises(error, match=words):
        candidate_specs(**problem(**changes))


@pytest.mark.parametrize("seqlen_q", [1, 64, 65, 100_000])
@pytest.mark.parametrize("target", TARGETS)
def test_entries_are_chosen_in_the_order_of_candidates(target, seqlen_q):
    """The order of the run-time table (from entries) and of a miss (from tile rows) must agree."""
    head_dims = HEAD_DIMS if Arch.SM80 in TARGETS[target].archs else HEAD_DIMS[1:]
    for head_dim, mask in product(head_dims, Mask):
        specs = [s for s in kernel_set("default", target) if s.key.head_dim == head_dim and s.key.mask is mask]
        specs = [s for s in specs if s.key.dtype is DType.BF16 and s.key.head_dim_v == head_dim]
        ordered = choose([entry(spec, target) for spec in specs], seqlen_q)
        wanted = candidate_specs(dtype=DType.BF16, head_dim=head_dim, mask=mask, target=target, seqlen_q=seqlen_q)
        exact = [spec.name for spec in wanted if not spec.key.pads_head_dim]
        assert [row["name"] for row in ordered] == exact


def test_entry_of_a_tile_outside_the_table_comes_after_the_defaults(make_spec):
    odd = entry(make_spec(block_n=48), "sm_80")
    assert odd["priority"] > max(entry(make_spec(), "sm_80")["priority"], 0)
    assert odd["max_seqlen_q"] is None and odd["reason"] == "not a default tile"


@pytest.mark.parametrize(
    ("block_m", "scheduler", "ctas_per_sm"),
    [(64, Scheduler.SINGLE, 2), (128, Scheduler.DYNAMIC, 1)],
    ids=lambda value: getattr(value, "value", str(value)),
)
def test_entry_says_how_a_persistent_grid_is_sized(block_m, scheduler, ctas_per_sm):
    specs = candidate_specs(**problem(target="sm_90a", mask=Mask.CAUSAL))
    row = next(entry(spec, "sm_90a") for spec in specs if spec.tile.block_m == block_m)
    assert (row["scheduler"], row["cluster_size"], row["ctas_per_sm"]) == (scheduler.value, 1, ctas_per_sm)


def test_manifest_is_json_and_complete():
    specs = kernel_set("minimal", "sm_86")
    data = json.loads(json.dumps(manifest(specs, "sm_86")))
    assert data["target"] == "sm_86"
    assert [row["name"] for row in data["kernels"]] == [spec.name for spec in specs]
    for row, spec in zip(data["kernels"], specs, strict=True):
        assert row["packed_key"] == pack_key(spec.key)
        assert set(spec.to_dict()) < set(row)
