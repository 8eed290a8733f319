# SPDX-License-Identifier: Apache-2.0
"""`attnsmith explain`: the named kernel is the one that dispatch builds, and every sentence follows from the spec."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import Any

import pytest
from attnsmith.codegen.dispatch import spec_for
from attnsmith.codegen.errors import SpecError
from attnsmith.codegen.spec import DType, Mask
from attnsmith.tools.cli import main
from attnsmith.tools.explain import DEVICE_TARGETS, Problem, explain, resolve_target
from click.testing import CliRunner


def problem(**changes: Any) -> Problem:
    fields = {"dtype": DType.BF16, "head_dim": 128, "head_dim_v": 128, "mask": Mask.FULL}
    return Problem(**{**fields, **changes})


@pytest.mark.parametrize("target", sorted(set(DEVICE_TARGETS.values())))
@pytest.mark.parametrize("head_dim", [1, 32, 40, 128, 200, 256])
@pytest.mark.parametrize("seqlen_q", [None, 1, 64, 65])
def test_the_kernel_is_what_a_dispatch_miss_builds(target: str, head_dim: int, seqlen_q: int | None) -> None:
    asked = problem(head_dim=head_dim, head_dim_v=head_dim, seqlen_q=seqlen_q)
    facts = explain(asked, target)
    expected = spec_for(dtype=DType.BF16, head_dim=head_dim, mask=Mask.FULL, target=target, seqlen_q=seqlen_q)
    assert facts["kernel"]["name"] == expected.name
    assert facts["kernel"]["smem_bytes"] <= facts["kernel"]["smem_allowed"]
    names = [row["name"] for row in [facts["kernel"], *facts["alternatives"]]]
    assert len(names) == len(set(names)) >= 2


@pytest.mark.parametrize(
    ("changes", "name", "sentence"),
    [
        ({}, "fwd_sm90_bf16_hdim128_full_", "take tiles in turn"),
        ({"mask": Mask.CAUSAL}, "fwd_sm90_bf16_hdim128_causal_", "longest tile"),
        ({"head_dim": 72, "head_dim_v": 72}, "hdim96_", "where TMA fills columns with zeros, without a copy"),
        ({"head_dim": 70, "head_dim_v": 70}, "hdim96_", "the host first copies what is no multiple of 8"),
        ({"head_dim": 192}, "hdim192x128_", "head_dim 192 with head_dim_v 128 has a kernel of its own"),
        ({"dtype": DType.E4M3}, "fwd_sm90_e4m3_bf16_hdim128_full_", "transposes V"),
        ({"dtype": DType.E5M2, "v_is_col_major": True}, "_vcol_", "Warpgroups take turns"),
        ({"dtype": DType.E4M3, "out_dtype": DType.FP16}, "fwd_sm90_e4m3_fp16_", "P V product"),
        ({"packs_gqa": True}, "_packgqa_", "a kernel of its own"),
        ({}, "fwd_sm90_", "Tensors that TMA cannot describe"),
    ],
)
def test_sm90_names_its_pipeline(changes: dict[str, Any], name: str, sentence: str) -> None:
    facts = explain(problem(**changes), "sm_90a")
    assert name in facts["kernel"]["name"]
    assert any(re.search(sentence, line) for line in facts["why"]), facts["why"]
    assert facts["kernel"]["smem_bytes"] == sum(facts["kernel"]["smem_members"].values())


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({}, "head_dim 128 has a kernel of its own."),
        ({"head_dim": 40, "head_dim_v": 40}, "without a copy"),
        ({"head_dim": 33, "head_dim_v": 33}, "the host first copies"),
        ({"head_dim_v": 64}, "head_dim 128 with head_dim_v 64 has a kernel of its own"),
        ({"seqlen_q": 5}, "seqlen_q 5 is at most 64"),
    ],
)
def test_reasons_name_what_decided(changes: dict[str, Any], sentence: str) -> None:
    assert any(sentence in line for line in explain(problem(**changes), "sm_80")["why"])


@pytest.mark.parametrize(
    ("name", "target"),
    [("a100", "sm_80"), ("sim:rtx4090", "sm_89"), ("SM_86", "sm_86"), ("sim:h100", "sm_90a"), ("h200", "sm_90a")],
)
def test_devices_resolve_to_targets(name: str, target: str) -> None:
    assert resolve_target(name) == target


@pytest.mark.parametrize(
    "arguments",
    [["--dtype", "e4m3"], ["--head-dim", "257"], ["--head-dim", "0"], ["--device", "k80"], ["--device", "sm_70"]],
)
def test_what_cannot_be_served_is_exit_2_and_one_line(arguments: list[str]) -> None:
    result = CliRunner().invoke(main, ["explain", *arguments])
    assert result.exit_code == 2
    assert "error: " in result.output and "allowed: " in result.output
    assert "Traceback" not in result.output


def test_json_and_text_name_the_same_kernel() -> None:
    arguments = ["explain", "--head-dim", "64", "--causal"]
    facts = json.loads(CliRunner().invoke(main, [*arguments, "--json"]).output)
    text = CliRunner().invoke(main, arguments).output
    assert facts["kernel"]["name"] in text.splitlines()[0]
    assert str(facts["kernel"]["smem_bytes"]) in text


def test_unknown_device_lists_the_known_ones() -> None:
    with pytest.raises(SpecError, match="rtx4090"):
        resolve_target("voodoo")


def test_explaining_imports_no_torch() -> None:
    script = (
        "import sys; from attnsmith.tools.cli import main\n"
        "try: main(['explain'])\n"
        "except SystemExit as end: assert end.code == 0, end.code\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)


def test_devices_are_those_of_the_simulator_bindings() -> None:
    from attnsmith import simulation

    assert DEVICE_TARGETS == simulation.DEVICE_TARGETS
