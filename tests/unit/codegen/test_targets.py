# SPDX-License-Identifier: Apache-2.0
"""Reading target lists in every spelling people use, and which target's code runs on which device (BLD-09, BLD-22)."""

from __future__ import annotations

import pytest
from attnsmith.codegen.errors import SpecError, UnsupportedError
from attnsmith.codegen.resources import TARGETS
from attnsmith.codegen.targets import parse_target, parse_targets, runs_on, target_for_capability

ACCEPTED = {
    "8.0;9.0": ("sm_80", "sm_90"),
    "8.0 9.0": ("sm_80", "sm_90"),
    "8.0 ; 9.0": ("sm_80", "sm_90"),
    "8.0,9.0": ("sm_80", "sm_90"),
    "9.0+PTX": ("sm_90",),
    "sm_90": ("sm_90",),
    "SM80": ("sm_80",),
    "compute_86": ("sm_86",),
    "90": ("sm_90",),
    "8.0;": ("sm_80",),
    "8.0;8.0": ("sm_80",),
    "9.0;8.0;8.9": ("sm_80", "sm_89", "sm_90"),
    "Ampere": ("sm_80", "sm_86"),
    "Ada": ("sm_89",),
    "9.0a": ("sm_90a",),
    "9.0A": ("sm_90a",),
    "9.0a+PTX": ("sm_90a",),
    "sm_90a": ("sm_90a",),
    "compute_90a;8.0": ("sm_80", "sm_90a"),
    "9.0;9.0a": ("sm_90", "sm_90a"),
    "hopper": ("sm_90a",),
    "all": tuple(TARGETS),
}


@pytest.mark.parametrize("text", ACCEPTED)
def test_forms_with_one_meaning_are_accepted(text):
    assert parse_targets(text) == ACCEPTED[text]


@pytest.mark.parametrize("text", ["", " ; ", "8", "volta", "8.0;bogus", "8.0.1", "sm_", "-1"])
def test_a_token_without_a_meaning_is_quoted(text):
    with pytest.raises(SpecError) as info:
        parse_targets(text)
    assert not isinstance(info.value, UnsupportedError)
    assert "sm_80, sm_86, sm_89, sm_90" in str(info.value)
    if ";" in text and "bogus" in text:
        assert "'bogus'" in info.value.got


@pytest.mark.parametrize("text", ["8.0a", "9.0f", "8.0;10.0a", "12.0f", "11.0", "sm_70", "7.5"])
def test_a_real_target_without_kernels_is_never_dropped(text):
    with pytest.raises(UnsupportedError, match="no kernels for"):
        parse_targets(text)


def test_a_suffix_that_no_target_has_names_the_one_to_use():
    with pytest.raises(UnsupportedError, match=r"Use sm_90\."):
        parse_targets("9.0f")


def test_one_target_means_one():
    assert parse_target("8.6") == "sm_86"
    with pytest.raises(SpecError, match="exactly one"):
        parse_target("8.0;8.6")


@pytest.mark.parametrize(
    ("target", "capability", "runs"),
    [
        ("sm_80", (8, 0), True),
        ("sm_80", (8, 6), True),
        ("sm_80", (8, 9), True),
        ("sm_86", (8, 0), False),
        ("sm_80", (9, 0), False),
        ("sm_90", (9, 0), True),
        ("sm_90", (12, 0), False),
        ("sm_90a", (9, 0), True),
        ("sm_90a", (9, 1), False),
        ("sm_90a", (12, 0), False),
        ("sm80", (8, 0), False),
    ],
    ids=lambda value: str(value).replace(" ", ""),
)
def test_binary_compatibility(target, capability, runs):
    assert runs_on(target, capability) == runs


@pytest.mark.parametrize(
    ("capability", "target"),
    [((8, 0), "sm_80"), ((8, 6), "sm_86"), ((8, 7), "sm_86"), ((8, 9), "sm_89"), ((9, 0), "sm_90a")],
    ids=str,
)
def test_device_gets_the_nearest_target(capability, target):
    assert target_for_capability(*capability) == target


@pytest.mark.parametrize("capability", [(7, 5), (12, 0), (10, 0)], ids=str)
def test_device_without_kernels_is_named(capability):
    with pytest.raises(UnsupportedError) as info:
        target_for_capability(*capability)
    assert f"{capability[0]}.{capability[1]}" in str(info.value) and "simulate" in info.value.do
