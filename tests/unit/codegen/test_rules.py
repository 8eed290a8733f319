# SPDX-License-Identifier: Apache-2.0
"""Legality rules: a failing and a passing example for each row, and the text of the messages."""

from __future__ import annotations

import pytest
from attnsmith.codegen.errors import SpecError, UnsupportedError
from attnsmith.codegen.registry import kernel_set
from attnsmith.codegen.render import has_template
from attnsmith.codegen.resources import TARGETS
from attnsmith.codegen.rules import RULES, check, is_legal, violations
from attnsmith.codegen.spec import Arch, DType, Op

# rule id -> (target, changes that break it first), (target, the nearest changes that pass)
EXAMPLES = {
    "target-known": (("sm_70", {}), ("sm_80", {})),
    "arch-available": (("sm_90", {"arch": Arch.SM90}), ("sm_90", {})),
    "target-of-family": (("sm_80", {"arch": Arch.SM90}), ("sm_80", {})),
    "dtype-in-mma": (("sm_80", {"dtype": DType.E4M3}), ("sm_80", {"dtype": DType.FP16})),
    "head-dim-aligned": (("sm_80", {"head_dim": 36}), ("sm_80", {"head_dim": 32})),
    "head-dim-swizzle": (("sm_80", {"head_dim_v": 40}), ("sm_80", {"head_dim_v": 64})),
    "head-dim-supported": (("sm_80", {"head_dim": 160}), ("sm_80", {"head_dim": 192})),
    "head-dim-v-supported": (("sm_80", {"head_dim_v": 320}), ("sm_80", {"head_dim_v": 96})),
    "num-warps": (("sm_80", {"num_warps": 6}), ("sm_80", {"num_warps": 8})),
    "threads-per-block": (("sm_80", {"num_warps": 8}), ("sm_80", {"num_warps": 8})),
    "block-m-covered": (("sm_80", {"block_m": 96}), ("sm_80", {"block_m": 64})),
    "block-n-covered": (("sm_80", {"block_n": 24}), ("sm_80", {"block_n": 48})),
    "num-stages": (("sm_80", {"num_stages": 0}), ("sm_80", {"num_stages": 1})),
    "shared-memory": (("sm_86", {"num_stages": 3}), ("sm_80", {"num_stages": 3})),
    "registers": (("sm_80", {"block_n": 128}), ("sm_80", {"block_n": 128, "num_warps": 8})),
}


@pytest.fixture
def impossible_hardware(monkeypatch):
    """Lets rules that today's tables cannot break be broken: an SM90 template, and a target with small CTAs."""
    from dataclasses import replace

    monkeypatch.setattr("attnsmith.codegen.rules.has_template", lambda op, arch: True)
    tiny = replace(TARGETS["sm_80"], max_threads_per_block=128)
    monkeypatch.setitem(TARGETS, "sm_tiny", tiny)


def test_examples_cover_every_rule():
    assert [rule.id for rule in RULES] == list(EXAMPLES)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_rule_accepts_its_passing_example(make_spec, rule):
    target, changes = EXAMPLES[rule.id][1]
    assert violations(make_spec(**changes), target) == []
    check(make_spec(**changes), target)


@pytest.mark.parametrize(
    "rule", [r for r in RULES if r.id not in ("target-of-family", "threads-per-block")], ids=lambda rule: rule.id
)
def test_rule_rejects_its_failing_example(make_spec, rule):
    target, changes = EXAMPLES[rule.id][0]
    spec = make_spec(**changes)
    if rule.id == "arch-available" and has_template(Op.FWD, Arch.SM90):
        pytest.skip("every arch has a template")
    assert violations(spec, target)[0].id == rule.id
    with pytest.raises(rule.error) as info:
        check(spec, target)
    assert spec.name in str(info.value)
    for part in (info.value.asked, info.value.got, info.value.allowed, info.value.do):
        assert part and "None" not in part
    assert not is_legal(spec, target)


def test_a_target_outside_the_family_is_rejected(make_spec, impossible_hardware):
    target, changes = EXAMPLES["target-of-family"][0]
    assert violations(make_spec(**changes), target)[0].id == "target-of-family"
    with pytest.raises(SpecError, match="arch sm90 for target sm_80; allowed: sm80 on sm_80"):
        check(make_spec(**changes), target)


def test_more_threads_than_the_target_has_are_rejected(make_spec, impossible_hardware):
    spec = make_spec(num_warps=8)
    assert violations(spec, "sm_tiny")[0].id == "threads-per-block"
    with pytest.raises(SpecError, match="256 threads; allowed: 128"):
        check(spec, "sm_tiny")


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
