# SPDX-License-Identifier: Apache-2.0
"""The readable report of a GPU check, from its results alone. Not responsible for finding any of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from attnsmith.tools.anchors import public_speed
from attnsmith.tools.roofline import GPUS

if TYPE_CHECKING:
    from attnsmith.tools.gpu_check import Results


def peak_tflops(gpu: str, dtype: str) -> float | None:
    """The dense peak of a GPU by its full name; None where it is not known. A figure above it is a broken clock."""
    limits = next((limits for name, limits in GPUS.items() if name.upper() in gpu), None)
    if limits is None:
        return None
    return limits.peak_tflops * limits.tensor_flops(1 if dtype in ("e4m3", "e5m2") else 2) / limits.flops


def to_markdown(results: Results) -> str:
    """The whole report."""
    sections = (
        [f"# GPU check: {'ok' if results.ok else 'FAILED'}", ""],
        _facts(results),
        _failures(results),
        _variants(results.variants),
        _simulator(results.simulator),
        _timings(results),
        _missed(results),
    )
    return "\n".join(line for section in sections for line in section)


def _table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    lines = ["| " + " | ".join(header) + " |", "|" + " --- |" * len(header)]
    lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    return [*lines, ""]


def _facts(results: Results) -> list[str]:
    rows = [*results.facts.items(), *((f"seconds: {name}", value) for name, value in results.seconds.items())]
    return ["## Machine", "", *_table(("what", "value"), rows)]


def _failures(results: Results) -> list[str]:
    rows = [
        (where, row["kernel"], row.get("case", ""), row["note"])
        for where, found in (("build", results.builds), ("variant", results.variants), ("simulator", results.simulator))
        for row in found
        if not row["ok"]
    ]
    if not rows:
        return []
    return ["## Failures", "", *_table(("where", "kernel", "case", "what"), rows)]


def _variants(variants: Sequence[dict[str, Any]]) -> list[str]:
    """One line per kernel: how many cases, and the worst error as a part of what the rule allows."""
    rows = []
    for name in dict.fromkeys(row["kernel"] for row in variants):
        cases = [row for row in variants if row["kernel"] == name]
        worst = max((row.get("out_error_of_allowed") or 0.0 for row in cases), default=0.0)
        lse = max((row.get("lse_error_of_allowed") or 0.0 for row in cases), default=0.0)
        rows.append((name, len(cases), sum(not row["ok"] for row in cases), f"{worst:.2f}", f"{lse:.4f}"))
    header = ("kernel", "cases", "failed", "out error / allowed, worst", "lse error / allowed, worst")
    return ["## Variants against the fp64 reference", "", *_table(header, rows)]


def _simulator(rows: Sequence[dict[str, Any]]) -> list[str]:
    cells = []
    for row in rows:
        numbers = [row.get(name, "-") for name in ("out_max", "out_equal", "lse_max", "lse_equal")]
        cells.append((row["kernel"], row["case"], "ok" if row["ok"] else "FAILED", *numbers))
    header = ("kernel", "case", "", "out: largest difference", "equal", "lse: largest difference", "equal")
    return ["## GPU against simulator, same inputs", "", *_table(header, cells)]


def _timings(results: Results) -> list[str]:
    if not results.timings:
        return []
    names = list(results.timings[0]["providers"])
    gpu = str(results.facts.get("gpu", ""))
    rows = [
        (row["shape"], *(_cell(row["providers"][name], peak_tflops(gpu, row["dtype"])) for name in names),
         _public(row, gpu))
        for row in results.timings
    ]  # fmt: skip
    text = (
        "TFLOPS of the median, in brackets the 10th to 90th percentile in microseconds and the repeats. FLOPs count "
        "visible pairs only: 4 x head_dim each. L2 is flushed before every repeat, compilation is excluded. Published "
        "figures are other people's, from other machines."
    )
    return ["## Forward timings", "", text, "", *_table(("shape", *names, "published"), rows)]


def _cell(cell: dict[str, Any], peak: float | None) -> str:
    if "tflops" not in cell:
        return str(cell.get("note", "-")).replace("|", "/")[:60]
    doubt = " ABOVE PEAK: broken clock" if peak and cell["tflops"] > peak else ""
    spread = f"{cell['p10'] * 1e6:.0f}-{cell['p90'] * 1e6:.0f} us, {cell['repeats']}"
    return f"{cell['tflops']:.1f} ({spread}){doubt}"


def _public(row: dict[str, Any], gpu: str) -> str:
    found = public_speed(gpu, row["dtype"], row["head_dim"])
    tflops = found.tflops(row["causal"]) if found else None
    return f"{tflops:.0f} ({found.gpu}: {found.source})" if found and tflops else "-"


def _missed(results: Results) -> list[str]:
    if not results.not_reached:
        return []
    lines = ["## Not reached within the budget", ""]
    for section, names in results.not_reached.items():
        lines += [f"{section}: {len(names)}", "", *(f"- {name}" for name in names), ""]
    return lines
