# SPDX-License-Identifier: Apache-2.0
"""Everything that only a GPU can show, inside a time budget and without network: every variant against the reference,
GPU against simulator on the same inputs, and timings beside PyTorch SDPA's backends.

Sections run in the order of what is worth most, each within its share of the budget; what a share did not reach is
listed, never dropped. Not responsible for the report's text (gpu_report.py). What touches a device is in `Hands`, so
that the logic runs in tests without one.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from attnsmith.codegen.errors import AttnsmithError
from attnsmith.codegen.families import DTYPES, head_dim_unit
from attnsmith.codegen.registry import family_of, kernel_set
from attnsmith.codegen.resources import target_limits
from attnsmith.codegen.spec import Arch, DType, KernelSpec, Mask
from attnsmith.tools.bench import Clock, CudaClock, TimedShape, sdpa_providers, time_shape, timed_shapes
from attnsmith.tools.check import CheckCase, CheckError, CheckResult, run_check

SHARES = {"build": 0.40, "variants": 0.65, "simulator": 0.80, "timings": 0.97}
"""Section -> the part of the budget that is used up when it must end."""

SIZES = ((113, 203), (203, 113), (128, 256), (257, 1), (1, 257), (1000, 1000))
"""(seqlen_q, seqlen_k) that every variant is checked with, the most telling first."""

SIMULATED_SIZES = ((113, 203), (64, 64))
"""Small enough for the simulator on a few cores."""

SIMULATED_DEVICES = {"sm_80": "a100", "sm_86": "rtx3090", "sm_89": "rtx4090", "sm_90": "h100", "sm_90a": "h100"}

FALLBACK_TARGETS = {"sm_90a": "sm_90"}
"""GPU's target -> the target of the kernels that serve what its own cannot; their minimal set is checked last."""

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What to run."""

    target: str
    """Compile target of the GPU."""
    budget_seconds: float
    """All sections together."""
    out: Path
    """Folder of report.json and report.md."""
    device: str = "cuda"
    """Where variants run; a test puts a simulated device here."""
    set_name: str = "default"
    """Kernel set to build and check."""
    sizes: tuple[tuple[int, int], ...] = SIZES
    """For the variants."""


@dataclass(kw_only=True)
class Results:
    """Everything that was found; JSON-ready by to_dict."""

    facts: dict[str, Any] = field(default_factory=dict)
    builds: list[dict[str, Any]] = field(default_factory=list)
    variants: list[dict[str, Any]] = field(default_factory=list)
    simulator: list[dict[str, Any]] = field(default_factory=list)
    timings: list[dict[str, Any]] = field(default_factory=list)
    not_reached: dict[str, list[str]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """No build, variant or comparison failed, and at least one variant was checked."""
        return bool(self.variants) and all(row["ok"] for row in [*self.builds, *self.variants, *self.simulator])

    def to_dict(self) -> dict[str, Any]:
        """The JSON report."""
        return {"ok": self.ok, **asdict(self)}


@dataclass(frozen=True, kw_only=True)
class Hands:
    """What touches a device, a compiler or the clock."""

    build: Callable[[KernelSpec, str], Any]
    """(spec, target) -> BuiltKernel."""
    use_only: Callable[[Any], Any]
    """BuiltKernel -> context manager inside which it is the only kernel of the dispatch table."""
    check: Callable[[CheckCase], CheckResult]
    """Runs one case."""
    providers: Callable[[], dict[str, Callable[..., object]]]
    """Name -> what bench.time_shape times, ours first."""
    clock: Callable[[], Clock]
    """Times calls."""
    now: Callable[[], float] = time.monotonic
    """Seconds."""
    jobs: int = 1
    """Compilations at once."""


class Deadline:
    """The budget, asked by section."""

    def __init__(self, budget: float, now: Callable[[], float]) -> None:
        self._now, self._start, self._budget = now, now(), budget

    def is_over(self, section: str) -> bool:
        """The section has used up its share."""
        return self._now() - self._start >= SHARES[section] * self._budget


def require_gpu() -> str:
    """The compile target of the GPU.

    Raises:
        CheckError: there is none.
    """
    import torch
    from attnsmith.codegen.targets import target_for_capability

    if not torch.cuda.is_available():
        raise CheckError(
            asked="check the GPU at hand",
            got="no CUDA GPU in this machine",
            allowed="a machine with an A100, H100, H200 or RTX 30/40",
            do="Without one, `attnsmith check --device sim:a100` and `make test` run the same kernels simulated.",
        )
    return target_for_capability(*torch.cuda.get_device_capability())


def run_gpu_check(settings: Settings, hands: Hands, say: Say) -> Results:
    """Run all sections; the report files are rewritten after each, so that an interrupted run leaves what it has."""
    from attnsmith.tools.gpu_report import to_markdown

    results = Results(facts=machine_facts(settings))
    deadline = Deadline(settings.budget_seconds, hands.now)
    settings.out.mkdir(parents=True, exist_ok=True)
    built: list[Any] = []

    def finish(section: str, start: float) -> None:
        results.seconds[section] = round(hands.now() - start, 1)
        (settings.out / "report.json").write_text(json.dumps(results.to_dict(), indent=1) + "\n")
        (settings.out / "report.md").write_text(to_markdown(results))

    steps: tuple[tuple[str, Callable[[], object]], ...] = (
        ("build", lambda: built.extend(build_all(settings, hands, deadline, results, say))),
        ("variants", lambda: check_variants(built, settings, hands, deadline, results, say)),
        ("simulator", lambda: compare_with_simulator(built, settings, hands, deadline, results, say)),
        ("timings", lambda: time_shapes(settings, hands, deadline, results, say)),
    )
    for number, (section, step) in enumerate(steps, start=1):
        say(f"[{number}/{len(steps)}] {section}")
        start = hands.now()
        step()
        finish(section, start)
    return results


DTYPE_ORDER = ("bf16", "e4m3", "fp16", "e5m2")
HEAD_DIM_ORDER = (128, 64, 256, 192, 96, 32)
"""What is worth most when the budget does not reach everything, first."""


def ordered_specs(settings: Settings) -> list[KernelSpec]:
    """Every spec of the set, the best tile of each problem before the alternatives; then the fallback's kernels."""
    specs = kernel_set(settings.set_name, settings.target)
    first = {spec.key: spec for spec in reversed(specs)}
    best = [spec for spec in specs if first[spec.key] == spec]

    def rank(spec: KernelSpec) -> tuple[bool, int, int]:
        dtype, head_dim = spec.key.dtype.value, spec.key.head_dim
        return (spec not in best, DTYPE_ORDER.index(dtype), HEAD_DIM_ORDER.index(head_dim))

    fallback = FALLBACK_TARGETS.get(settings.target)
    return [*sorted(specs, key=rank), *(kernel_set("minimal", fallback) if fallback else ())]


def target_of(spec: KernelSpec, settings: Settings) -> str:
    """What a spec is compiled for: the GPU's target, or the fallback's where its family is another."""
    if spec.key.arch in target_limits(settings.target).archs:
        return settings.target
    return FALLBACK_TARGETS[settings.target]


def build_all(settings: Settings, hands: Hands, deadline: Deadline, results: Results, say: Say) -> list[Any]:
    """Build in parallel until the share is used; a kernel that does not compile is a failed row, not the end."""
    specs = ordered_specs(settings)
    built: dict[str, Any] = {}
    waiting = list(specs)
    with ThreadPoolExecutor(max_workers=hands.jobs) as pool:
        running: dict[Any, KernelSpec] = {}
        while waiting or running:
            while waiting and len(running) < hands.jobs and not deadline.is_over("build"):
                spec = waiting.pop(0)
                running[pool.submit(hands.build, spec, target_of(spec, settings))] = spec
            if not running:
                break
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                spec = running.pop(future)
                row, kernel = _build_row(spec, future)
                results.builds.append(row)
                if kernel is not None:
                    built[spec.name] = kernel
                say(f"      {len(results.builds)}/{len(specs)} {spec.name} {row['note']}")
    _note_missed(results, "build", [spec.name for spec in waiting])
    return [built[spec.name] for spec in specs if spec.name in built]


def _build_row(spec: KernelSpec, future: Any) -> tuple[dict[str, Any], Any]:
    try:
        kernel = future.result()
    except AttnsmithError as error:
        return {"kernel": spec.name, "ok": False, "note": f"FAILED: {error}"}, None
    note = "cached" if kernel.was_cached else f"{kernel.seconds:.1f} s"
    return {"kernel": spec.name, "ok": True, "note": note, "seconds": kernel.seconds}, kernel


def _note_missed(results: Results, section: str, names: Sequence[str]) -> None:
    if names:
        results.not_reached[section] = list(names)


def variant_case(spec: KernelSpec, device: str, sizes: tuple[int, int], seed: int) -> CheckCase:
    """A case that only this spec's key serves: grouped heads, two batches, its own head dims.

    A kernel that zero-fills columns gets smaller ones: always where that is what it is for, on SM90, where every kernel
    does, with every second seed.
    """
    fills = spec.key.pads_head_dim or (spec.key.arch is Arch.SM90 and seed % 2 == 1)
    shrink = head_dim_unit(spec.key.dtype) if fills else 0
    default_out = DType.BF16 if spec.key.dtype.is_fp8 else spec.key.dtype
    return CheckCase(
        device=device,
        dtype=spec.key.dtype.value,
        batch=2,
        seqlen_q=sizes[0],
        seqlen_k=sizes[1],
        nheads=4,
        nheads_k=2,
        head_dim=spec.key.head_dim - shrink,
        head_dim_v=spec.key.head_dim_v - shrink,
        causal=spec.key.mask is Mask.CAUSAL,
        v_layout="col" if spec.key.v_is_col_major else "row",
        out_dtype=None if spec.key.out_dtype is default_out else spec.key.out_dtype and spec.key.out_dtype.value,
        pack_gqa=spec.key.packs_gqa if spec.key.arch is Arch.SM90 else None,
        seed=seed,
    )


def check_variants(
    built: Sequence[Any], settings: Settings, hands: Hands, deadline: Deadline, results: Results, say: Say
) -> None:
    """Every variant with the first size, then every variant with the next: an early end has still seen each kernel."""
    missed = []
    for round_number, sizes in enumerate(settings.sizes):
        failed = 0
        for kernel in built:
            case = variant_case(kernel.spec, settings.device, sizes, seed=round_number)
            if deadline.is_over("variants"):
                missed.append(f"{kernel.name}: {case.label}")
                continue
            row = _checked(kernel, case, hands)
            results.variants.append(row)
            failed += not row["ok"]
            if not row["ok"]:
                say(f"      FAILED {kernel.name}: {row['note']}")
        say(f"      seqlen {sizes[0]} x {sizes[1]}: {len(built)} kernels, {failed} failed")
    _note_missed(results, "variants", missed)


def _checked(kernel: Any, case: CheckCase, hands: Hands) -> dict[str, Any]:
    row: dict[str, Any] = {"kernel": kernel.name, "case": case.label}
    try:
        with hands.use_only(kernel):
            result = hands.check(case)
    except (AttnsmithError, RuntimeError) as error:
        return {**row, "ok": False, "note": str(error)}
    wrong_kernel = [name for name in result.kernels if name != kernel.name]
    note = f"ran {', '.join(wrong_kernel)} instead" if wrong_kernel else ""
    tensors = {name: (tensor.max_abs_err, tensor.allowed) for name, tensor in result.tensors.items()}
    for name, tensor in result.tensors.items():
        if not tensor.ok:
            note += f"{name} error {tensor.max_abs_err:.2e}, allowed {tensor.allowed:.2e}"
    ok = result.ok and not wrong_kernel
    numbers = {f"{name}_error_of_allowed": _ratio(*pair) for name, pair in tensors.items()}
    return {**row, "ok": ok, "note": note, **numbers}


def _ratio(error: float, allowed: float) -> float | None:
    """Error as a part of what is allowed; None where it is not finite, which JSON could not say."""
    value = error / allowed
    return round(value, 4) if value == value and abs(value) != float("inf") else None


def compare_with_simulator(
    built: Sequence[Any], settings: Settings, hands: Hands, deadline: Deadline, results: Results, say: Say
) -> None:
    """The same kernel, cubin and PTX, on the same inputs: the difference may not exceed the tolerance rule's."""
    simulated = f"sim:{SIMULATED_DEVICES[settings.target]}"
    missed = []
    for seed, sizes in enumerate(SIMULATED_SIZES):
        for kernel in built:
            case = variant_case(kernel.spec, settings.device, sizes, seed)
            if deadline.is_over("simulator"):
                missed.append(f"{kernel.name}: {case.label}")
                continue
            row = _compared(kernel, case, simulated, hands)
            results.simulator.append(row)
            if not row["ok"]:
                say(f"      FAILED {kernel.name}: {row['note']}")
    say(f"      {len(results.simulator)} comparisons with {simulated}")
    _note_missed(results, "simulator", missed)


def _compared(kernel: Any, case: CheckCase, simulated: str, hands: Hands) -> dict[str, Any]:
    row: dict[str, Any] = {"kernel": kernel.name, "case": case.label, "simulated": simulated}
    try:
        with hands.use_only(kernel):
            real, model = hands.check(case), hands.check(replace(case, device=simulated))
    except (AttnsmithError, RuntimeError) as error:
        return {**row, "ok": False, "note": str(error)}
    differences = {name: _difference(real.outputs[name], model.outputs[name]) for name in real.tensors}
    too_large = [name for name, (largest, _) in differences.items() if not largest <= real.tensors[name].allowed]
    numbers: dict[str, float] = {}
    for name, (largest, equal) in differences.items():
        numbers.update({f"{name}_max": largest, f"{name}_equal": equal})
    note = f"{', '.join(too_large)} differ by more than the rule allows" if too_large else ""
    return {**row, "ok": not too_large and real.ok and model.ok, "note": note, **numbers}


def _difference(left: Any, right: Any) -> tuple[float, float]:
    """(largest difference, share of elements with equal bits); infinities at the same places are equal."""
    a, b = left.double().cpu().flatten(), right.double().cpu().flatten()
    same = (a == b) | (a.isnan() & b.isnan())
    largest = (a - b).abs().masked_fill(same, 0.0).nan_to_num(nan=float("inf")).max().item() if a.numel() else 0.0
    return (largest if largest < 1e30 else 1e30), round(same.double().mean().item(), 6) if a.numel() else 1.0


def time_shapes(settings: Settings, hands: Hands, deadline: Deadline, results: Results, say: Say) -> None:
    """Ours and each SDPA backend on the same tensors, until the share is used."""
    clock = hands.clock()
    providers = hands.providers()
    missed = []
    for shape in (shape for shape in timed_shapes() if is_served(shape, settings.target)):
        if deadline.is_over("timings"):
            missed.append(shape.label)
            continue
        row = time_shape(shape, settings.device, providers, clock)
        results.timings.append(row)
        figures = ", ".join(f"{name} {cell.get('tflops', '-')}" for name, cell in row["providers"].items())
        say(f"      {shape.label}: TFLOPS {figures}")
    _note_missed(results, "timings", missed)


def is_served(shape: TimedShape, target: str) -> bool:
    """Whether the target's kernels multiply the shape's dtype: FP8 from SM90 on."""
    return DType(shape.dtype) in DTYPES[family_of(target)]


@contextmanager
def only_kernel(built: Any) -> Iterator[None]:
    """Inside, the dispatch table holds this kernel alone and nothing is compiled: a case runs it or fails."""
    import attnsmith
    from attnsmith import launcher

    before = os.environ.get("ATTNSMITH_JIT")
    os.environ["ATTNSMITH_JIT"] = "0"
    launcher.load().clear_kernels()
    attnsmith.register_kernel(built)
    try:
        yield
    finally:
        launcher.load().clear_kernels()
        os.environ.pop("ATTNSMITH_JIT") if before is None else os.environ.update(ATTNSMITH_JIT=before)


def gpu_hands() -> Hands:
    """The real ones."""
    from attnsmith.codegen.build import build_kernel
    from attnsmith.codegen.compile.jobs import NVRTC_BYTES, default_jobs

    return Hands(
        build=lambda spec, target: build_kernel(spec, target, progress=lambda *_: None),
        use_only=only_kernel,
        check=run_check,
        providers=sdpa_providers,
        clock=CudaClock,
        jobs=default_jobs(64, NVRTC_BYTES),
    )


def machine_facts(settings: Settings) -> dict[str, Any]:
    """Date, machine and versions: what a figure is worth nothing without."""
    import attnsmith
    import torch

    facts: dict[str, Any] = {
        "date": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
        "attnsmith": attnsmith.__version__,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "cpu cores": os.cpu_count(),
        "device": settings.device,
        "target": settings.target,
        "kernel set": settings.set_name,
        "budget seconds": settings.budget_seconds,
    }
    if settings.device.startswith("cuda"):
        properties = torch.cuda.get_device_properties(0)
        facts["gpu"] = properties.name
        facts["SMs"] = properties.multi_processor_count
        facts["memory GB"] = round(properties.total_memory / 1e9, 1)
        facts.update(_nvidia_smi())
    return facts


def _nvidia_smi() -> dict[str, str]:
    """Driver, clocks and power limit, where nvidia-smi is there to say."""
    fields = ("driver_version", "clocks.sm", "clocks.max.sm", "clocks.mem", "power.limit")
    command = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader", "--id=0"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return {}
    return dict(zip(fields, (text.strip() for text in done.stdout.strip().split(",")), strict=False))
