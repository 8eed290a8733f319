# SPDX-License-Identifier: Apache-2.0
"""KernelSpec: its name, its dict form and the types of its fields."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError, fields

import pytest
from attnsmith.codegen.errors import SpecError
from attnsmith.codegen.registry import kernel_set
from attnsmith.codegen.resources import TARGETS
from attnsmith.codegen.spec import Arch, DType, KernelSpec, Mask, ProblemKey, Scheduler, TileConfig, parse_enum

ALL_SPECS = sorted({spec for target in TARGETS for spec in kernel_set("full", target)}, key=lambda spec: spec.name)


def test_name_reads_like_the_spec(make_spec):
    assert make_spec().name == "fwd_sm80_bf16_hdim128_causal_128x64_w4_s1"
    assert make_spec(head_dim=192).name == "fwd_sm80_bf16_hdim192x128_causal_128x64_w4_s1"
    assert make_spec(pads_head_dim=True, mask=Mask.FULL).name == "fwd_sm80_bf16_hdim128pad_full_128x64_w4_s1"


CHANGES = {
    "arch": Arch.SM90,
    "dtype": DType.FP16,
    "head_dim": 96,
    "head_dim_v": 96,
    "mask": Mask.FULL,
    "pads_head_dim": True,
    "block_m": 64,
    "block_n": 32,
    "num_warps": 8,
    "num_stages": 2,
    "out_dtype": DType.FP16,
    "v_is_col_major": True,
    "packs_gqa": True,
    "scheduler": Scheduler.DYNAMIC,
    "cluster_size": 2,
    "is_ping_pong": True,
    "overlaps_softmax": True,
    "p_in_smem": True,
    "skips_rescale": False,
    "exp2_fma_eighths": 3,
}


@pytest.mark.parametrize("field", CHANGES)
def test_every_field_changes_the_name(make_spec, field):
    assert make_spec(**{field: CHANGES[field]}).name != make_spec().name


def test_every_field_is_covered_above():
    names = {field.name for cls in (ProblemKey, TileConfig) for field in fields(cls)}
    assert names - {"op"} == set(CHANGES), "op has one value today"


def test_the_output_has_a_16_bit_type_unless_named():
    problem = {"arch": Arch.SM90, "head_dim": 64, "head_dim_v": 64, "mask": Mask.FULL}
    assert ProblemKey(dtype=DType.FP16, **problem).out_dtype is DType.FP16
    assert ProblemKey(dtype=DType.E5M2, **problem).out_dtype is DType.BF16


def test_sm90_names_list_the_options_that_are_set(make_sm90_spec):
    assert make_sm90_spec().name == "fwd_sm90_bf16_hdim128_causal_128x128_w8_s2_dynamic_pp_overlap"
    changes = {"dtype": DType.E4M3, "out_dtype": DType.FP16, "v_is_col_major": True, "packs_gqa": True}
    tile = {"cluster_size": 2, "p_in_smem": True, "skips_rescale": False, "exp2_fma_eighths": 2}
    assert make_sm90_spec(**changes, **tile).name == (
        "fwd_sm90_e4m3_fp16_hdim128_causal_vcol_packgqa_128x128_w8_s2_dynamic_c2_pp_overlap_psmem_rescale_fma2"
    )


def test_names_are_short_unique_symbols():
    names = [spec.name for spec in ALL_SPECS]
    assert len(set(names)) == len(names)
    assert all(name.isidentifier() and len(name) <= 100 for name in names)


def test_dict_round_trip_through_json():
    for spec in ALL_SPECS:
        assert KernelSpec.from_dict(json.loads(json.dumps(spec.to_dict()))) == spec


def test_dict_has_every_field(make_spec):
    names = {field.name for cls in (ProblemKey, TileConfig) for field in fields(cls)}
    assert set(make_spec().to_dict()) == names | {"name"}


def test_from_dict_names_the_missing_field(make_spec):
    row = make_spec().to_dict()
    del row["block_n"]
    with pytest.raises(SpecError, match="no block_n"):
        KernelSpec.from_dict(row)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"dtype": "bf16"}, "DType"),
        ({"mask": None}, "Mask"),
        ({"head_dim": 128.0}, "an int"),
        ({"block_m": "64"}, "an int"),
        ({"num_stages": True}, "an int"),
        ({"pads_head_dim": 1}, "True or False"),
        ({"is_ping_pong": 1}, "True or False"),
        ({"scheduler": "static"}, "Scheduler"),
        ({"out_dtype": "bf16"}, "DType"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_a_field_of_the_wrong_type_is_refused(make_spec, changes, words):
    with pytest.raises(SpecError, match=words):
        make_spec(**changes)


def test_a_spec_is_frozen(make_spec):
    with pytest.raises(FrozenInstanceError):
        make_spec().tile.block_m = 64


def test_parse_enum_takes_any_case_and_lists_what_exists():
    assert parse_enum(DType, " BF16 ") is DType.BF16
    with pytest.raises(SpecError, match="fp16, bf16, e4m3, e5m2"):
        parse_enum(DType, "fp32")
