# SPDX-License-Identifier: Apache-2.0
"""The Python side of dispatch that needs no launcher: targets of GPUs, build commands, explain, arguments."""

from __future__ import annotations

import json
from typing import Any

import attnsmith
import pytest
from attnsmith import dispatch, simulation
from attnsmith.codegen.dispatch import spec_for
from attnsmith.codegen.resources import TARGETS
from attnsmith.codegen.spec import DType, Mask
from attnsmith.tools.cli import main
from click.testing import CliRunner


@pytest.mark.parametrize(
    "device,target",
    [("sm_80", "sm_80"), ("sm_86", "sm_86"), ("sm_87", "sm_86"), ("sm_89", "sm_89"), ("sm_90", "sm_90a")],
)
def test_best_target_of_a_gpu(device: str, target: str) -> None:
    assert dispatch.compile_target(device) == target


def test_what_tma_cannot_address_runs_the_sm80_family() -> None:
    assert dispatch.compile_target("sm_90", can_use_tma=False) == "sm_90"
    assert dispatch.compile_target("sm_89", can_use_tma=False) == "sm_89"


@pytest.mark.parametrize("device", ["sm_75", "sm_100", "sm_120"])
def test_gpus_without_kernels_are_refused(device: str) -> None:
    with pytest.raises(RuntimeError, match="compute capability"):
        dispatch.compile_target(device)


def test_build_command_names_the_kernel() -> None:
    spec = spec_for(dtype=DType.FP16, head_dim=96, head_dim_v=64, mask=Mask.CAUSAL, target="sm_86")
    command = dispatch.build_command(spec, "sm_86", 96, 64)
    for part in ("attnsmith build", "sm_86", "fp16", "--head-dim 96", "--head-dim-v 64", "causal"):
        assert part in command


@pytest.mark.parametrize("head_dim,head_dim_v", [(64, 64), (40, 40), (33, 64), (128, 96), (96, 57), (250, 250)])
def test_build_command_builds_the_kernel_that_was_missed(head_dim: int, head_dim_v: int) -> None:
    spec = spec_for(dtype=DType.BF16, head_dim=head_dim, head_dim_v=head_dim_v, mask=Mask.FULL, target="sm_80")
    command = dispatch.build_command(spec, "sm_80", head_dim, head_dim_v).split()
    listed = CliRunner().invoke(main, ["list", "--json", *command[command.index("--arch") :]])
    assert spec.name in [row["name"] for row in json.loads(listed.stdout)]


@pytest.mark.parametrize(
    "dtype,head_dims,options",
    [
        (DType.BF16, (128, 128), {}),
        (DType.FP16, (72, 128), {"packs_gqa": True}),
        (DType.E4M3, (128, 128), {"out_dtype": DType.FP16, "v_is_col_major": True}),
        (DType.E5M2, (64, 64), {"packs_gqa": True}),
    ],
    ids=["bf16", "packed", "col-major", "e5m2"],
)
def test_build_command_builds_sm90_variants(dtype: DType, head_dims: tuple[int, int], options: dict[str, Any]) -> None:
    spec = spec_for(
        dtype=dtype, head_dim=head_dims[0], head_dim_v=head_dims[1], mask=Mask.CAUSAL, target="sm_90a", **options
    )
    command = dispatch.build_command(spec, "sm_90a", *head_dims).split()
    listed = CliRunner().invoke(main, ["list", "--json", *command[command.index("--arch") :]])
    assert spec.name in [row["name"] for row in json.loads(listed.stdout)]


def test_explain_knows_the_variants_of_8_bit_types() -> None:
    facts = attnsmith.explain(dtype="e4m3", out_dtype="fp16", v_is_col_major=True, pack_gqa=True, device="h100")
    assert facts["kernel"]["name"].startswith("fwd_sm90_e4m3_fp16_hdim128_full_vcol_packgqa_")


def test_explain_needs_no_launcher() -> None:
    facts = attnsmith.explain(dtype="fp16", head_dim=72, causal=True, device="a100")
    assert "hdim96pad_causal" in facts["kernel"]["name"]
    assert facts["why"] and facts["alternatives"] and isinstance(facts["loaded"], list)


def test_explain_says_that_one_causal_row_is_the_full_mask() -> None:
    assert "_full_" in attnsmith.explain(head_dim=64, causal=True, seqlen_q=1, device="a100")["kernel"]["name"]


@pytest.mark.parametrize(
    "options,message",
    [
        ({"device": "v100"}, "device='v100'"),
        ({"device": ""}, "device=''"),
        ({"schedule": "fastest"}, "schedule='fastest'"),
        ({"async_mode": "never"}, "async_mode='never'"),
        ({"device": 80}, "device=80"),
        ({"seed": -1}, "seed=-1"),
        ({"seed": 2**64}, "seed="),
        ({"num_threads": -1}, "num_threads=-1"),
        ({"step_budget": 0.5}, "step_budget=0.5"),
    ],
)
def test_simulate_refuses_what_it_does_not_know_before_building(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message), attnsmith.simulate(**options):
        raise AssertionError("entered")


def test_a_wrong_environment_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTNSMITH_SIMULATE", "v100")
    with pytest.raises(ValueError, match=r"ATTNSMITH_SIMULATE.*'v100'.*a100"):
        simulation.current()


@pytest.mark.parametrize("value,is_enabled", [(None, True), ("", True), ("1", True), ("0", False)])
def test_jit_is_on_unless_switched_off(value: str | None, is_enabled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if value is None:
        monkeypatch.delenv("ATTNSMITH_JIT", raising=False)
    else:
        monkeypatch.setenv("ATTNSMITH_JIT", value)
    assert dispatch.is_jit_enabled() == is_enabled


def test_a_word_does_not_switch_the_jit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTNSMITH_JIT", "false")
    with pytest.raises(RuntimeError, match=r"ATTNSMITH_JIT.*'false'.*0 or 1"):
        dispatch.is_jit_enabled()


def test_explain_names_the_dtypes() -> None:
    with pytest.raises(ValueError, match=r"fp99.*fp16"):
        attnsmith.explain(dtype="fp99", device="a100")


def test_simulated_devices_have_known_targets() -> None:
    from attnsmith.tools.explain import DEVICE_TARGETS

    assert set(simulation.DEVICE_TARGETS.values()) <= set(TARGETS)
    assert simulation.DEVICE_TARGETS == DEVICE_TARGETS
