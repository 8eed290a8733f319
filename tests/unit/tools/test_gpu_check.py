# SPDX-License-Identifier: Apache-2.0
"""The logic of `attnsmith gpu-check` without a GPU: order, budget, failures, and what the two reports say.

Devices, compiler and clock are stand-ins; the real ones are used in tests/sim and tests/gpu.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from attnsmith.codegen.errors import CompileError
from attnsmith.codegen.registry import kernel_set
from attnsmith.codegen.spec import Arch, DType, KernelSpec, Mask, ProblemKey
from attnsmith.tools import bench, gpu_check
from attnsmith.tools.check import CheckCase, CheckResult, TensorCheck
from attnsmith.tools.cli import main
from attnsmith.tools.gpu_check import SHARES, Hands, Settings, ordered_specs, run_gpu_check, variant_case
from attnsmith.tools.gpu_report import to_markdown
from click.testing import CliRunner


class FakeMachine:
    """A GPU, a compiler and a clock that advances by what each step is said to cost."""

    def __init__(self, *, build_cost: float = 1.0, check_cost: float = 0.01) -> None:
        self.time = 0.0
        self.build_cost, self.check_cost = build_cost, check_cost
        self.loaded: Any = None
        self.broken: dict[str, str] = {}
        self.simulator_error = 0.0
        self.simulated = "sim:a100"
        self.targets: dict[str, str] = {}

    def build(self, spec: KernelSpec, target: str) -> Any:
        self.time += self.build_cost
        self.targets[spec.name] = target
        if self.broken.get(spec.name) == "compile":
            raise CompileError(asked=f"compile {spec.name}", got="error: x", allowed="no errors", do="Report it.")
        return SimpleNamespace(name=spec.name, spec=spec, seconds=self.build_cost, was_cached=False)

    @contextlib.contextmanager
    def use_only(self, kernel: Any) -> Iterator[None]:
        self.loaded = kernel
        yield
        self.loaded = None

    def check(self, case: CheckCase) -> CheckResult:
        self.time += self.check_cost
        kind = self.broken.get(self.loaded.name)
        if kind == "launch":
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        error = 1.0 if kind == "wrong" else 1e-4
        out = torch.full((2, 3), self.simulator_error if case.device == self.simulated else 0.0)
        ran = "another_kernel" if kind == "misdispatched" else self.loaded.name
        lse = TensorCheck(max_abs_err=0.0, allowed=1.0)
        tensors = {"out": TensorCheck(max_abs_err=error, allowed=1e-3), "lse": lse}
        return CheckResult(case=case, kernels=(ran,), tensors=tensors, outputs={"out": out, "lse": out})

    def hands(self) -> Hands:
        return Hands(
            build=self.build,
            use_only=self.use_only,
            check=self.check,
            providers=lambda: {"attnsmith": self.attention(1e-3), "sdpa flash": self.attention(2e-3), "none": refuse},
            clock=lambda: self,
            now=lambda: self.time,
        )

    def attention(self, cost: float) -> Callable[..., None]:
        def call(*_: Any) -> None:
            self.time += cost

        return call

    def synchronize(self) -> None:
        pass

    def seconds(self, function: Callable[[], object]) -> float:
        before = self.time
        function()
        return self.time - before


def refuse(*_: Any) -> None:
    raise RuntimeError("No available kernel. Aborting execution.\nmore lines")


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    small = [shape for shape in gpu_check.timed_shapes(tokens=64, width=64) if shape.dtype == "bf16"][:3]
    monkeypatch.setattr(gpu_check, "timed_shapes", lambda: iter(small))
    return Settings(
        target="sm_80", budget_seconds=480, out=tmp_path / "report", device="sim:h100", set_name="minimal",
        sizes=((113, 203), (257, 1)),
    )  # fmt: skip


def test_everything_is_checked_and_both_reports_are_written(settings: Settings) -> None:
    specs = ordered_specs(settings)
    results = run_gpu_check(settings, FakeMachine().hands(), lambda _: None)
    assert results.ok and results.not_reached == {}
    assert len(results.builds) == len(specs)
    assert len(results.variants) == 2 * len(specs)
    assert len(results.simulator) == 2 * len(specs)
    assert len(results.timings) == 3
    facts = json.loads((settings.out / "report.json").read_text())
    assert facts["ok"] is True and facts["facts"]["target"] == "sm_80"
    text = (settings.out / "report.md").read_text()
    for spec in specs:
        assert spec.name in text
    assert "GPU check: ok" in text and "Failures" not in text


def test_timings_stand_side_by_side_with_their_spread(settings: Settings) -> None:
    results = run_gpu_check(settings, FakeMachine().hands(), lambda _: None)
    cells = results.timings[0]["providers"]
    assert cells["attnsmith"]["median"] == pytest.approx(1e-3)
    assert cells["attnsmith"]["tflops"] >= cells["sdpa flash"]["tflops"]
    assert cells["none"] == {"note": "No available kernel. Aborting execution."}
    assert set(cells["attnsmith"]) >= {"median", "minimum", "maximum", "p10", "p90", "repeats"}
    assert "| shape | attnsmith | sdpa flash | none |" in to_markdown(results)


@pytest.mark.parametrize("kind", ["compile", "launch", "wrong", "misdispatched"])
def test_one_bad_kernel_is_reported_and_the_rest_still_runs(settings: Settings, kind: str) -> None:
    machine = FakeMachine()
    bad = ordered_specs(settings)[2].name
    machine.broken[bad] = kind
    results = run_gpu_check(settings, machine.hands(), lambda _: None)
    assert not results.ok
    failed = {row["kernel"] for row in [*results.builds, *results.variants] if not row["ok"]}
    assert failed == {bad}
    assert len(results.timings) == 3
    text = to_markdown(results)
    assert "GPU check: FAILED" in text and "## Failures" in text
    assert json.loads((settings.out / "report.json").read_text())["ok"] is False


def test_a_simulator_that_disagrees_is_a_failure(settings: Settings) -> None:
    machine = FakeMachine()
    machine.simulator_error = 0.5
    results = run_gpu_check(settings, machine.hands(), lambda _: None)
    assert not results.ok
    assert {row["ok"] for row in results.simulator} == {False}
    assert results.simulator[0]["out_equal"] == 0.0
    assert {row["ok"] for row in results.variants} == {True}


def test_the_budget_ends_building_and_what_was_missed_is_listed(settings: Settings) -> None:
    machine = FakeMachine(build_cost=60.0)
    results = run_gpu_check(settings, machine.hands(), lambda _: None)
    names = [spec.name for spec in ordered_specs(settings)]
    built = len(results.builds)
    assert 0 < built < len(names)
    assert results.not_reached["build"] == names[built:]
    assert machine.time < settings.budget_seconds
    assert all(name in to_markdown(results) for name in names)


def test_slow_checks_still_see_every_kernel_once_before_any_twice(settings: Settings) -> None:
    machine = FakeMachine(check_cost=25.0)
    results = run_gpu_check(settings, machine.hands(), lambda _: None)
    names = [row["kernel"] for row in results.variants]
    assert len(set(names)) == len(ordered_specs(settings)) < len(names)
    assert results.not_reached["variants"]
    assert machine.time <= settings.budget_seconds


def test_nothing_checked_is_not_ok(settings: Settings) -> None:
    results = run_gpu_check(replace(settings, budget_seconds=1e-9), FakeMachine().hands(), lambda _: None)
    assert not results.ok and results.not_reached["build"]


def test_an_interrupted_run_leaves_what_it_has(settings: Settings) -> None:
    machine = FakeMachine()

    def interrupt() -> dict[str, Callable[..., object]]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_gpu_check(settings, replace(machine.hands(), providers=interrupt), lambda _: None)
    assert json.loads((settings.out / "report.json").read_text())["variants"]


def test_best_tiles_come_first(settings: Settings) -> None:
    specs = ordered_specs(replace(settings, set_name="default"))
    keys = [spec.key for spec in specs]
    assert len(set(keys[: len(set(keys))])) == len(set(keys)), "every problem once before any alternative"


def test_a_padding_kernel_gets_a_case_that_pads(settings: Settings) -> None:
    specs = ordered_specs(replace(settings, set_name="full"))
    pads = next(spec for spec in specs if spec.key.pads_head_dim)
    assert variant_case(pads, "cuda", (1, 1), 0).head_dim < pads.key.head_dim


@pytest.fixture
def hopper(settings: Settings) -> Settings:
    return replace(settings, target="sm_90a", set_name="default", budget_seconds=1e5)


def test_sm90_checks_every_default_variant_and_the_fallback(hopper: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_check, "time_shapes", lambda *_: None)
    machine = FakeMachine()
    machine.simulated = "sim:h100"
    results = run_gpu_check(hopper, machine.hands(), lambda _: None)
    assert results.ok and results.not_reached == {}
    names = {row["kernel"] for row in results.variants}
    assert names == {spec.name for spec in (*kernel_set("default", "sm_90a"), *kernel_set("minimal", "sm_90"))}
    assert {row["simulated"] for row in results.simulator} == {"sim:h100"}
    for name, target in machine.targets.items():
        assert target == ("sm_90a" if name.startswith("fwd_sm90") else "sm_90")
    assert {spec.key.dtype for spec in ordered_specs(hopper)} == set(DType)


def test_sm90_starts_with_what_is_worth_most(hopper: Settings) -> None:
    first, *_, last = ordered_specs(hopper)
    assert (first.key.dtype, first.key.head_dim, first.key.arch) == (DType.BF16, 128, Arch.SM90)
    assert last.key.arch is Arch.SM80


@pytest.mark.parametrize("dtype", list(DType), ids=lambda dtype: dtype.value)
def test_sm90_variants_get_their_own_and_smaller_head_dims(dtype: DType) -> None:
    key = ProblemKey(arch=Arch.SM90, dtype=dtype, head_dim=128, head_dim_v=128, mask=Mask.FULL)
    spec = next(spec for spec in kernel_set("default", "sm_90a") if spec.key == key)
    exact, smaller = (variant_case(spec, "cuda", (113, 203), seed) for seed in (0, 1))
    assert (exact.head_dim, exact.dim_v) == (128, 128)
    assert smaller.head_dim == smaller.dim_v == 128 - 16 // dtype.num_bytes


def test_sm90_variants_are_asked_for_by_what_makes_them_variants() -> None:
    specs = {spec.key: variant_case(spec, "cuda", (113, 203), 0) for spec in kernel_set("full", "sm_90a")}
    for key, case in specs.items():
        assert (case.v_layout == "col", case.pack_gqa) == (key.v_is_col_major, key.packs_gqa)
        assert case.result_dtype == (key.out_dtype and key.out_dtype.value)
    assert {case.v_layout for case in specs.values()} == {"row", "col"}
    assert {case.pack_gqa for case in specs.values()} == {True, False}
    first = kernel_set("minimal", "sm_80")[0]
    assert variant_case(first, "cuda", (1, 1), 0).pack_gqa is None
    to_fp16 = ProblemKey(
        arch=Arch.SM90, dtype=DType.E4M3, head_dim=64, head_dim_v=64, mask=Mask.FULL, out_dtype=DType.FP16
    )
    assert variant_case(replace(first, key=to_fp16), "cuda", (1, 1), 0).out_dtype == "fp16"


@pytest.mark.parametrize(("target", "dtypes"), [("sm_80", {"bf16"}), ("sm_90a", {"bf16", "e4m3"})])
def test_fp8_is_timed_where_the_gpu_has_it(settings: Settings, target: str, dtypes: set[str]) -> None:
    served = [shape for shape in bench.timed_shapes() if gpu_check.is_served(shape, target)]
    assert {shape.dtype for shape in served} == dtypes
    assert {shape.head_dim for shape in served} >= {64, 128, 256}


def test_published_figures_stand_beside_ours(settings: Settings) -> None:
    results = run_gpu_check(settings, FakeMachine().hands(), lambda _: None)
    assert " - |" in next(line for line in to_markdown(results).splitlines() if "s8192" in line)
    results.facts["gpu"] = "NVIDIA H100 80GB HBM3"
    for row in results.timings:
        row.update(dtype="e4m3", head_dim=128, causal=False)
    results.timings[0]["providers"]["attnsmith"]["tflops"] = 1500.0
    text = to_markdown(results)
    assert "1008 (H100: FlashAttention-3, S=16k)" in text and "ABOVE PEAK" not in text
    results.timings[0]["dtype"] = "bf16"
    assert "648 (H100" in to_markdown(results) and "ABOVE PEAK" in to_markdown(results)


def test_a_figure_above_the_peak_is_called_what_it_is(settings: Settings) -> None:
    results = run_gpu_check(settings, FakeMachine().hands(), lambda _: None)
    results.facts["gpu"] = "NVIDIA A100-SXM4-80GB"
    results.timings[0]["providers"]["attnsmith"]["tflops"] = 400.0
    assert "400.0" in to_markdown(results) and "ABOVE PEAK" in to_markdown(results)


def test_shares_are_increasing_parts_of_the_budget() -> None:
    assert list(SHARES.values()) == sorted(SHARES.values()) and max(SHARES.values()) < 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what a machine without a GPU says")
def test_without_a_gpu_it_says_so_and_exits_2(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["gpu-check", "--out", str(tmp_path / "none")])
    assert result.exit_code == 2
    assert "no CUDA GPU" in result.output and "sim:a100" in result.output
    assert not (tmp_path / "none").exists()
