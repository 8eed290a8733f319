# SPDX-License-Identifier: Apache-2.0
"""Legality rules: a failing and a passing example for each row, and the text of the messages."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
from attnsmith.codegen.errors import SpecError, UnsupportedError
from attnsmith.codegen.registry import kernel_set
from attnsmith.codegen.resources import TARGETS
from attnsmith.codegen.rules import RULES, check, is_legal, violations
from attnsmith.codegen.spec import Arch, DType, Mask, Scheduler, TileConfig

E4M3 = {"dtype": DType.E4M3}

# rule id -> (target, changes that break it first), (target, the nearest changes that pass). The spec that is changed is
# SM90's for target sm_90a, else SM80's.
EXAMPLES = {
    "target-known": (("sm_70", {}), ("sm_80", {})),
    "arch-available": (("sm_90a", {}), ("sm_90a", {})),
    "target-of-family": (("sm_80", {"arch": Arch.SM90}), ("sm_80", {})),
    "dtype-in-mma": (("sm_80", {"dtype": DType.E4M3}), ("sm_80", {"dtype": DType.FP16})),
    "out-dtype": (("sm_80", {"out_dtype": DType.FP16}), ("sm_80", {"dtype": DType.FP16, "out_dtype": DType.FP16})),
    "head-dim-aligned": (("sm_80", {"head_dim": 36}), ("sm_80", {"head_dim": 32})),
    "num-warps": (("sm_80", {"num_warps": 6}), ("sm_80", {"num_warps": 8})),
    "threads-per-block": (("sm_tiny", {"num_warps": 8}), ("sm_80", {"num_warps": 8})),
    "sm90-options": (("sm_80", {"scheduler": Scheduler.STATIC}), ("sm_80", {"scheduler": Scheduler.SINGLE})),
    "head-dim-swizzle": (("sm_80", {"head_dim_v": 40}), ("sm_80", {"head_dim_v": 64})),
    "head-dim-supported": (("sm_80", {"head_dim": 160}), ("sm_80", {"head_dim": 192})),
    "head-dim-v-supported": (("sm_80", {"head_dim_v": 320}), ("sm_80", {"head_dim_v": 96})),
    "block-m-covered": (("sm_80", {"block_m": 96}), ("sm_80", {"block_m": 64})),
    "block-n-covered": (("sm_80", {"block_n": 24}), ("sm_80", {"block_n": 48})),
    "head-dim-pair": (("sm_90a", {"head_dim": 96}), ("sm_90a", {"head_dim": 192})),
    "pads-head-dim": (("sm_90a", {"pads_head_dim": True}), ("sm_90a", {"pads_head_dim": False})),
    "v-col-major-fp8": (("sm_90a", {"v_is_col_major": True}), ("sm_90a", {"v_is_col_major": True, **E4M3})),
    "v-col-major-block-n": (
        ("sm_90a", {"v_is_col_major": True, "dtype": DType.E5M2, "block_n": 96}),
        ("sm_90a", {"v_is_col_major": True, "dtype": DType.E5M2, "block_n": 128}),
    ),
    "block-m-warpgroups": (("sm_90a", {"block_m": 64}), ("sm_90a", {"block_m": 192, "num_warps": 12, "block_n": 64})),
    "block-n-wgmma": (("sm_90a", {"dtype": DType.E4M3, "block_n": 144}), ("sm_90a", {"block_n": 144})),
    "p-in-smem-16-bit": (("sm_90a", {"p_in_smem": True, "dtype": DType.E4M3}), ("sm_90a", {"p_in_smem": True})),
    "ping-pong": (("sm_90a", {"num_warps": 4, "block_m": 64}), ("sm_90a", {"num_warps": 8, "block_m": 128})),
    "fp8-rescale": (("sm_90a", {**E4M3, "skips_rescale": True}), ("sm_90a", {"skips_rescale": True})),
    "cluster-size": (("sm_90a", {"cluster_size": 3}), ("sm_90a", {"cluster_size": 1})),
    "cluster-multicast": (
        ("sm_90a", {"cluster_size": 2, "scheduler": Scheduler.STATIC}),
        ("sm_90a", {"cluster_size": 2, "scheduler": Scheduler.STATIC, "mask": Mask.FULL}),
    ),
    "exp2-share": (("sm_90a", {"exp2_fma_eighths": 9}), ("sm_90a", {"exp2_fma_eighths": 8})),
    "num-stages": (("sm_80", {"num_stages": 0}), ("sm_80", {"num_stages": 1})),
    "shared-memory": (("sm_86", {"num_stages": 3}), ("sm_80", {"num_stages": 3})),
    "registers": (("sm_80", {"block_n": 128}), ("sm_80", {"block_n": 128, "num_warps": 8})),
}


@pytest.fixture
def example(make_spec, make_sm90_spec):
    """`example(target, changes)`: the spec of one of EXAMPLES."""
    return lambda target, changes: (make_sm90_spec if target == "sm_90a" else make_spec)(**changes)


@pytest.fixture
def breakable(monkeypatch):
    """`breakable(rule id)` lets rules that today's tables cannot break be broken."""

    def prepare(rule_id: str) -> None:
        if rule_id == "arch-available":
            monkeypatch.setattr("attnsmith.codegen.rules.has_template", lambda op, arch: arch is Arch.SM80)
        if rule_id == "threads-per-block":
            monkeypatch.setitem(TARGETS, "sm_tiny", replace(TARGETS["sm_80"], max_threads_per_block=128))

    return prepare


def test_examples_cover_every_rule():
    assert [rule.id for rule in RULES] == list(EXAMPLES)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_rule_accepts_its_passing_example(example, rule):
    target, changes = EXAMPLES[rule.id][1]
    assert violations(example(target, changes), target) == []
    check(example(target, changes), target)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_rule_rejects_its_failing_example(example, breakable, rule):
    breakable(rule.id)
    target, changes = EXAMPLES[rule.id][0]
    spec = example(target, changes)
    assert violations(spec, target)[0].id == rule.id
    with pytest.raises(rule.error) as info:
        check(spec, target)
    assert spec.name in str(info.value)
    for part in (info.value.asked, info.value.got, info.value.allowed, info.value.do):
        assert part and "None" not in part
    assert not is_legal(spec, target)


@pytest.mark.parametrize(
    ("arch", "target"), [(Arch.SM90, "sm_80"), (Arch.SM90, "sm_90"), (Arch.SM80, "sm_90a")], ids=str
)
def test_a_target_outside_the_family_is_rejected(make_spec, make_sm90_spec, arch, target):
    spec = (make_spec if arch is Arch.SM80 else make_sm90_spec)()
    other = "sm80" if arch is Arch.SM90 else "sm90"
    with pytest.raises(SpecError, match=f"arch {arch.value} for target {target}; allowed: {other} on {target}"):
        check(spec, target)


OPTIONS = {
    "scheduler": Scheduler.DYNAMIC,
    "cluster_size": 2,
    "is_ping_pong": True,
    "overlaps_softmax": True,
    "p_in_smem": True,
    "skips_rescale": False,
    "exp2_fma_eighths": 1,
    "v_is_col_major": True,
    "packs_gqa": True,
}


@pytest.mark.parametrize("option", OPTIONS)
def test_an_sm80_kernel_has_no_sm90_option(make_spec, option):
    with pytest.raises(SpecError, match=rf"{option} {getattr(OPTIONS[option], 'value', OPTIONS[option])}; .*need SM90"):
        check(make_spec(**{option: OPTIONS[option]}), "sm_80")


def test_the_options_above_are_every_field_that_sm80_lacks():
    tile = {field.name for field in fields(TileConfig)} - {"block_m", "block_n", "num_warps", "num_stages"}
    assert tile | {"v_is_col_major", "packs_gqa"} == set(OPTIONS)


@pytest.mark.parametrize("scheduler", Scheduler)
@pytest.mark.parametrize("mask", Mask)
def test_a_cluster_needs_a_full_mask_and_tiles_in_order(make_sm90_spec, mask, scheduler):
    spec = make_sm90_spec(cluster_size=2, mask=mask, scheduler=scheduler)
    assert is_legal(spec, "sm_90a") == (mask is Mask.FULL and scheduler is not Scheduler.DYNAMIC)


def test_a_head_dim_pair_names_the_kernel_that_serves_it(make_sm90_spec):
    with pytest.raises(SpecError, match=r"head_dim 96 with head_dim_v 128; .*Use \(128, 128\), which serves it"):
        check(make_sm90_spec(head_dim=96), "sm_90a")
    with pytest.raises(SpecError, match="at most 256"):
        check(make_sm90_spec(head_dim=512), "sm_90a")


def test_a_consumers_registers_are_the_limit(make_sm90_spec):
    """128 x 224 e4m3: S 112 + O 64 + P 28 + 28 fill 232, and 240 where V need not be transposed."""
    fp8 = {"dtype": DType.E4M3, "mask": Mask.FULL}
    assert is_legal(make_sm90_spec(**fp8, block_n=224), "sm_90a")
    with pytest.raises(SpecError, match=r"about 252 registers per thread .*allowed: 232 per thread"):
        check(make_sm90_spec(**fp8, block_n=256, num_stages=1), "sm_90a")
    with pytest.raises(SpecError, match=r"operand_p 48.*allowed: 160 per thread"):
        check(make_sm90_spec(block_m=192, num_warps=12, block_n=192, head_dim=64, head_dim_v=64), "sm_90a")


def test_fp8_on_sm80_is_not_implemented_and_says_what_can(make_spec):
    with pytest.raises(NotImplementedError, match=r"SM80 has no FP8 MMA.*fp16, bf16.*FP8 needs SM90"):
        check(make_spec(dtype=DType.E5M2), "sm_80")
    with pytest.raises(UnsupportedError):
        check(make_spec(dtype=DType.E5M2), "sm_86")


def test_shared_memory_message_has_the_numbers_and_what_to_lower(make_spec):
    with pytest.raises(SpecError) as info:
        check(make_spec(num_stages=3), "sm_86")
    message = str(info.value)
    assert "132096 B of shared memory (q_or_o 32768, k 49152, v 49152, static 1024)" in message
    assert "101376 B per CTA on sm_86" in message
    assert "Lower block_n or num_stages." in message


def test_register_message_has_the_accounting(make_spec):
    with pytest.raises(SpecError, match=r"acc_s 128, acc_o 128.*allowed: 255 per thread"):
        check(make_spec(block_n=128), "sm_80")


def test_too_few_stages_are_called_that(make_spec):
    with pytest.raises(SpecError, match="too few stages"):
        check(make_spec(num_stages=0), "sm_80")


@pytest.mark.parametrize("num_warps", [-1, 0, 1, 3, 64])
@pytest.mark.parametrize("block_m", [-64, 0, 1, 1 << 20])
def test_no_number_makes_a_rule_raise(make_spec, num_warps, block_m):
    spec = make_spec(num_warps=num_warps, block_m=block_m, block_n=-16, num_stages=-1, head_dim=0, head_dim_v=-8)
    broken = {rule.id for rule in violations(spec, "sm_80")}
    assert {"num-warps", "block-n-covered", "num-stages", "head-dim-aligned"} <= broken
    assert violations(spec, "no target")[0].id == "target-known"


@pytest.mark.parametrize("num_warps", [-4, -1, 0, 1, 3, 16, 64])
@pytest.mark.parametrize("dtype", DType)
def test_no_number_makes_an_sm90_rule_raise(make_sm90_spec, num_warps, dtype):
    tile = {"num_warps": num_warps, "block_m": -64, "block_n": -16, "num_stages": -1, "cluster_size": -1}
    key = {"dtype": dtype, "head_dim": 0, "head_dim_v": -8, "v_is_col_major": True}
    spec = make_sm90_spec(**key, **tile, exp2_fma_eighths=-1)
    broken = {rule.id for rule in violations(spec, "sm_90a")}
    assert {"num-warps", "block-n-wgmma", "num-stages", "head-dim-pair", "cluster-size", "exp2-share"} <= broken
    for rule in violations(spec, "sm_90a"):
        assert str(rule.to_error(spec, "sm_90a"))


@pytest.mark.parametrize("target", TARGETS)
def test_every_kernel_of_every_set_is_legal(target):
    for spec in kernel_set("full", target):
        assert violations(spec, target) == [], spec.name


def test_ids_are_unique_and_needs_name_earlier_rules():
    seen: set[str] = set()
    for rule in RULES:
        assert rule.id not in seen
        assert set(rule.needs) <= seen
        seen.add(rule.id)
