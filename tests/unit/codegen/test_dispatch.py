# SPDX-License-Identifier: Apache-2.0
"""The packed key, the candidates of a problem, entries and their order, and the manifest."""

from __future__ import annotations

import json
from dataclasses import fields
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
from attnsmith.codegen.spec import Arch, DType, Mask, Op, ProblemKey

ALL_KEYS = [
    ProblemKey(op=op, arch=arch, dtype=dtype, head_dim=d, head_dim_v=dv, mask=mask, pads_head_dim=pads)
    for op, arch, dtype, d, dv, mask, pads in product(Op, Arch, DType, HEAD_DIMS, HEAD_DIMS, Mask, (False, True))
]


def test_packed_keys_are_distinct_non_zero_and_invertible():
    packed = [pack_key(key) for key in ALL_KEYS]
    assert len(set(packed)) == len(ALL_KEYS)
    assert all(0 < value < 1 << 64 for value in packed)
    assert [unpack_key(value) for value in packed] == ALL_KEYS


def test_published_codes_keep_their_meaning():
    """Written out by hand: libraries built earlier carry these numbers."""
    key = ProblemKey(arch=Arch.SM80, dtype=DType.BF16, head_dim=128, head_dim_v=64, mask=Mask.CAUSAL)
    assert pack_key(key) == 1 | 1 << 4 | 2 << 8 | (128 // 8) << 12 | (64 // 8) << 20 | 2 << 28 | 0 << 32


def test_fields_are_the_key_and_fit_64_bits():
    assert [field.name for field in FIELDS] == [field.name for field in fields(ProblemKey)]
    shifts = field_shifts()
    assert shifts[FIELDS[-1].name] + FIELDS[-1].bits <= 64
    enums = {"op": Op, "arch": Arch, "dtype": DType, "mask": Mask}
    for field in FIELDS:
        if field.values:
            assert {name for name, _ in field.values} == {member.value for member in enums[field.name]}
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
            assert spec.key.pads_head_dim or spec.key.head_dim == -(-head_dim // 8) * 8
        assert specs[0] == spec_for(
            dtype=DType.FP16, head_dim=head_dim, mask=mask, target=target, seqlen_q=seqlen_q
        )


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
        ({"target": "sm_75"}, SpecError, "sm_80"),
    ],
    ids=["head-dim", "head-dim-v", "fp8", "target"],
)
def test_problems_that_no_kernel_serves_say_why(changes, error, words):
    with pytest.raises(error, match=words):
        candidate_specs(**problem(**changes))


@pytest.mark.parametrize("seqlen_q", [1, 64, 65, 100_000])
@pytest.mark.parametrize("target", TARGETS)
def test_entries_are_chosen_in_the_order_of_candidates(target, seqlen_q):
    """The order of the run-time table (from entries) and of a miss (from tile rows) must agree."""
    for head_dim, mask in product(HEAD_DIMS, Mask):
        specs = [s for s in kernel_set("default", target) if s.key.head_dim == head_dim and s.key.mask is mask]
        specs = [spec for spec in specs if spec.key.dtype is DType.BF16]
        ordered = choose([entry(spec, target) for spec in specs], seqlen_q)
        wanted = candidate_specs(
            dtype=DType.BF16, head_dim=head_dim, mask=mask, target=target, seqlen_q=seqlen_q
        )
        exact = [spec.name for spec in wanted if not spec.key.pads_head_dim]
        assert [row["name"] for row in ordered] == exact


def test_entry_of_a_tile_outside_the_table_comes_after_the_defaults(make_spec):
    odd = entry(make_spec(block_n=48), "sm_80")
    assert odd["priority"] > max(entry(make_spec(), "sm_80")["priority"], 0)
    assert odd["max_seqlen_q"] is None and odd["reason"] == "not a default tile"


def test_manifest_is_json_and_complete():
    specs = kernel_set("minimal", "sm_86")
    data = json.loads(json.dumps(manifest(specs, "sm_86")))
    assert data["target"] == "sm_86"
    assert [row["name"] for row in data["kernels"]] == [spec.name for spec in specs]
    for row, spec in zip(data["kernels"], specs, strict=True):
        assert row["packed_key"] == pack_key(spec.key)
        assert set(spec.to_dict()) < set(row)
