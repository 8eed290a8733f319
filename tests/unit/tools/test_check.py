# SPDX-License-Identifier: Apache-2.0
"""`attnsmith check`: it can fail, its JSON has the fixed names, and misuse ends with exit code 2. No kernel runs here:
the device is `cpu`, whose op is the reference, or the op is a planted wrong one."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from attnsmith.codegen.errors import AttnsmithError
from attnsmith.tools import check
from attnsmith.tools.check import CheckCase, CheckResult, TensorCheck, call_op, make_inputs, run_check, sum_stats
from attnsmith.tools.cli import main
from click.testing import CliRunner
from torch import Tensor

CASE = CheckCase(device="cpu", dtype="bf16", seqlen_q=33, seqlen_k=50, nheads=4, nheads_k=2, head_dim=40, causal=True)

Planted = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def with_planted(change: Planted) -> CheckResult:
    """Run CASE with an op whose right result is then changed."""

    def op(case: CheckCase, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return change(*call_op(case, q, k, v))

    return run_check(CASE, op)


def poison_one(out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    out = out.clone()
    out[0, 5, 1, 7] = float("nan")
    return out, lse


def swap_heads(out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    return out.roll(1, dims=2), lse


def lose_a_row(out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    return torch.cat([out[:, :-1], torch.zeros_like(out[:, -1:])], dim=1), lse


def log2_lse(out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    return out, lse / math.log(2)


def test_the_reference_passes_its_own_check() -> None:
    result = with_planted(lambda out, lse: (out, lse))
    assert result.ok and result.kernels == () and result.stats is None


@pytest.mark.parametrize(
    ("planted", "tensor"),
    [(poison_one, "out"), (swap_heads, "out"), (lose_a_row, "out"), (log2_lse, "lse")],
)
def test_a_wrong_op_fails(planted: Planted, tensor: str) -> None:
    result = with_planted(planted)
    assert not result.ok
    assert [name for name, row in result.tensors.items() if not row.ok] == [tensor]


def test_the_output_buffer_is_poisoned() -> None:
    seen: list[Tensor] = []

    def op(case: CheckCase, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        out, lse = call_op(case, q, k, v)
        seen.append(out)
        return torch.full_like(out, float("nan")), lse

    assert run_check(CASE, op).tensors["out"].max_abs_err == math.inf
    assert not seen[0].isnan().any()


def test_inputs_come_from_the_seed_alone() -> None:
    first, second = make_inputs(CASE, torch.device("cpu")), make_inputs(CASE, torch.device("cpu"))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    other = make_inputs(CheckCase(**{**vars(CASE), "seed": 1}), torch.device("cpu"))
    assert not torch.equal(first[0], other[0])


def test_json_has_the_fixed_names() -> None:
    arguments = "check --device cpu --dtype fp16 --batch 2 --seqlen-q 5 --seqlen-k 9 --nheads 4 --nheads-k 1"
    arguments += " --head-dim 16 --head-dim-v 8 --causal --seed 3 --json"
    result = CliRunner().invoke(main, arguments.split())
    assert result.exit_code == 0, result.output
    facts = json.loads(result.stdout)
    assert facts["ok"] is True and facts["kernels"] == []
    for tensor in ("out", "lse"):
        assert facts[tensor]["max_abs_err"] <= facts[tensor]["allowed"]
    assert facts["case"]["head_dim_v"] == 8 and facts["case"]["seed"] == 3


def test_an_infinite_error_is_valid_json() -> None:
    row = CheckResult(case=CASE, kernels=(), tensors={"out": TensorCheck(max_abs_err=math.inf, allowed=1e-3)})
    facts = json.loads(json.dumps(row.to_dict(), allow_nan=False))
    assert facts["ok"] is False and facts["out"]["max_abs_err"] == "inf"


def test_a_nan_error_is_never_ok() -> None:
    assert not TensorCheck(max_abs_err=math.nan, allowed=1.0).ok


def test_exit_code_1_when_a_tolerance_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    row = CheckResult(case=CASE, kernels=(), tensors={"out": TensorCheck(max_abs_err=1.0, allowed=0.1)})
    monkeypatch.setattr("attnsmith.tools.cli.check.run_check", lambda case: row)
    result = CliRunner().invoke(main, ["check", "--device", "cpu"])
    assert result.exit_code == 1 and "FAILED" in result.output


@pytest.mark.parametrize(
    "arguments",
    [
        ["--device", "voodoo"],
        ["--device", "sim:voodoo"],
        ["--device", "cpu", "--dtype", "int8"],
        ["--device", "cpu", "--nheads", "3", "--nheads-k", "2"],
        ["--device", "cpu", "--head-dim", "257"],
        ["--device", "cpu", "--head-dim", "0"],
        ["--device", "cpu", "--batch", "-1"],
        ["--device", "cpu", "--seqlen-q", "many"],
    ],
)
def test_misuse_is_exit_code_2_without_a_traceback(arguments: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "attnsmith.tools.cli", "check", *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2, done.stdout + done.stderr
    assert "Traceback" not in done.stderr and done.stdout == ""


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what a machine without a GPU says")
def test_no_gpu_is_a_clear_error() -> None:
    with pytest.raises(AttnsmithError, match=r"no CUDA GPU.*sim:a100"):
        run_check(CheckCase(device="cuda"))


def test_statistics_of_several_launches_add_up() -> None:
    rows = [{"ctas": 2, "global_bytes_read": 5, "by_class": {"mma": 1}}, {"ctas": 3, "by_class": {"mma": 4}}]
    total = sum_stats(rows)
    assert total is not None and total["ctas"] == 5 and total["by_class"] == {"mma": 5}
    assert sum_stats([]) is None and sum_stats(rows[:1]) == rows[0]


def test_labels_name_the_case() -> None:
    assert CASE.label == "cpu bf16 b1 sq33 sk50 h4/2 d40 causal"
    assert check.torch_dtype("e4m3") is torch.float8_e4m3fn


def test_sizes_beyond_memory_are_an_error_with_four_parts() -> None:
    result = CliRunner().invoke(main, ["check", "--device", "cpu", "--seqlen-q", "1000000000"])
    assert result.exit_code == 2
    assert "Lower --batch, --nheads or the sequence lengths." in result.output


def test_a_seed_beyond_64_bits_is_a_usage_error() -> None:
    result = CliRunner().invoke(main, ["check", "--seed", "9" * 23])
    assert result.exit_code == 2
    assert "--seed" in result.output
