# SPDX-License-Identifier: Apache-2.0
"""`attnsmith check`: it can fail, its JSON has the fixed names, and misuse ends with exit code 2. No kernel runs here:
the device is `cpu`, whose op is the reference, or the op is a planted wrong one."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace

import attnsmith
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


FP8_CASE = replace(CASE, dtype="e4m3", batch=2, head_dim=48)


@pytest.mark.parametrize("dtype", ["e4m3", "e5m2"])
@pytest.mark.parametrize("v_layout", ["row", "col"])
@pytest.mark.parametrize("out_dtype", [None, "fp16"])
@pytest.mark.parametrize("pack_gqa", [None, True])
def test_fp8_passes(dtype: str, v_layout: str, out_dtype: str | None, pack_gqa: bool | None) -> None:
    case = replace(FP8_CASE, dtype=dtype, v_layout=v_layout, out_dtype=out_dtype, pack_gqa=pack_gqa)
    result = run_check(case)
    assert result.ok, result.tensors
    assert result.outputs["out"].dtype == check.torch_dtype(out_dtype or "bf16")


@pytest.mark.parametrize("name", ["q_descale", "k_descale", "v_descale"])
@pytest.mark.parametrize("change", [lambda x: x.flip(0), lambda x: x.flip(1), torch.ones_like], ids=["b", "h", "ones"])
def test_a_descale_of_another_index_fails(name: str, change: Callable[[Tensor], Tensor]) -> None:
    def op(case: CheckCase, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        descales = check.make_descales(case, q.device)
        changed = {**descales, name: change(descales[name])}
        result: tuple[Tensor, Tensor] = attnsmith.flash_attn_func(q, k, v, causal=True, return_lse=True, **changed)
        return result

    tensors = run_check(FP8_CASE, op).tensors
    assert not tensors["out"].ok and tensors["lse"].ok is (name == "v_descale")


def test_fp8_inputs_use_the_range_and_descales_undo_it() -> None:
    for dtype, most in (("e4m3", 448.0), ("e5m2", 57344.0)):
        case = replace(FP8_CASE, dtype=dtype)
        for x in make_inputs(case, torch.device("cpu")):
            assert x.dtype == check.torch_dtype(dtype) and most / 4 < x.float().abs().max() <= most
        descales = check.make_descales(case, torch.device("cpu"))
        values = torch.stack([*descales.values()]) * most / 8
        assert values.shape == (3, 2, 2) and values.unique().numel() == 12 and 0.5 <= values.min() < values.max() <= 2
    assert check.make_descales(CASE, torch.device("cpu")) == {}


def test_v_layout_is_that_of_memory() -> None:
    row, col = (make_inputs(replace(FP8_CASE, v_layout=layout), torch.device("cpu"))[2] for layout in ("row", "col"))
    assert row.stride(3) == 1 and col.stride(1) == 1 and torch.equal(row.float(), col.float())
    with pytest.raises(AttnsmithError, match="row, col"):
        run_check(replace(FP8_CASE, v_layout="diagonal"))


def test_pack_gqa_reaches_the_function(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []
    real = attnsmith.flash_attn_func

    def spy(*args: object, **options: object) -> object:
        seen.append(options["pack_gqa"])
        return real(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(attnsmith, "flash_attn_func", spy)
    for value in (None, True, False):
        assert run_check(replace(CASE, pack_gqa=value)).ok
    assert seen == [None, True, False]


def test_options_of_the_command_line() -> None:
    arguments = "check --device cpu --dtype e5m2 --v-layout col --out-dtype fp16 --no-pack-gqa --head-dim 32 --json"
    result = CliRunner().invoke(main, arguments.split())
    assert result.exit_code == 0, result.output
    case = json.loads(result.stdout)["case"]
    assert (case["v_layout"], case["out_dtype"], case["pack_gqa"]) == ("col", "fp16", False)


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
        ["--device", "cpu", "--out-dtype", "fp16"],
        ["--device", "cpu", "--v-layout", "diagonal"],
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
    packed = replace(CASE, dtype="e4m3", v_layout="col", out_dtype="fp16", pack_gqa=True)
    assert packed.label == "cpu e4m3 b1 sq33 sk50 h4/2 d40 causal vcol out fp16 packed"
    assert check.torch_dtype("e4m3") is torch.float8_e4m3fn


def test_sizes_beyond_memory_are_an_error_with_four_parts() -> None:
    result = CliRunner().invoke(main, ["check", "--device", "cpu", "--seqlen-q", "1000000000"])
    assert result.exit_code == 2
    assert "Lower --batch, --nheads or the sequence lengths." in result.output


def test_a_seed_beyond_64_bits_is_a_usage_error() -> None:
    result = CliRunner().invoke(main, ["check", "--seed", "9" * 23])
    assert result.exit_code == 2
    assert "--seed" in result.output
