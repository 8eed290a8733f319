# SPDX-License-Identifier: Apache-2.0
"""`attnsmith demo`: the command line of attnsmith.tools.demo, its progress and its tables."""

from __future__ import annotations

import json
import sys
import time

import click
from attnsmith.tools.demo import DTYPE, MIN_COSINE, Report, run_demo
from rich.console import Console
from rich.table import Table


@click.command()
@click.option(
    "--device",
    default="auto",
    show_default=True,
    help="auto, cuda, sim:a100, sim:h100, ...; auto: cuda or sim:a100.",
)
@click.option("--json", "as_json", is_flag=True, help="The facts as JSON on stdout; progress goes to stderr.")
def command(device: str, as_json: bool) -> None:
    """Encode English sentences with MiniLM through attnsmith kernels and compare with the stock model.

    Exit code 1 when an attention call exceeds its tolerance or an embedding's cosine similarity is below 0.9999.
    """
    start = time.perf_counter()

    def progress(text: str) -> None:
        click.echo(f"[{time.perf_counter() - start:6.1f} s] {text}", err=as_json)

    report = run_demo(device, progress)
    if as_json:
        click.echo(json.dumps(report.to_dict(), indent=2))
    else:
        show(report, Console(width=None if sys.stdout.isatty() else 120))
    click.get_current_context().exit(0 if report.ok else 1)


def show(report: Report, console: Console) -> None:
    """Everything as tables, each under a line that says what it is."""
    how = "counted by the simulator" if report.bytes_are_counted else "computed from the tiling"
    tables = (
        (f"Kernels: {DTYPE.value}, compiled for {report.target}, run on {report.device}", kernel_table(report)),
        (f"Bytes that attention moved through global memory in all 6 layers, {how}", traffic_table(report)),
        ("Cosine similarity of the texts, from our embeddings", similarity_table(report)),
    )
    for title, table in tables:
        console.print(f"\n[bold]{title}[/]")
        console.print(table)
    worst = report.worst_call
    console.print(
        f"\nattention vs fp64 reference: worst of {len(report.calls)} calls is {worst.max_abs_err:.2e} in layer "
        f"{worst.layer} of '{worst.text}'; the tolerance rule allows {worst.allowed:.2e}"
    )
    console.print(f"embeddings vs the stock fp32 model: cosine {min(report.cosines):.7f} or more; {MIN_COSINE} needed")
    if report.least_time is not None:
        console.print(least_time_line(report))
    seconds = ", ".join(f"{name} {value:.1f} s" for name, value in report.seconds.items())
    console.print(f"time: {seconds}")
    console.print("[bold green]ok[/]" if report.ok else "[bold red]FAILED: see the figures above[/]")


def least_time_line(report: Report) -> str:
    """What the device's limits allow for all calls; nothing of it is measured."""
    time = report.least_time
    if time is None:
        return ""
    name = report.device.removeprefix("sim:").upper()
    parts = ", ".join(f"{unit} {value * 1e6:.1f}" for unit, value in
                      (("tensor cores", time.mma), ("exp", time.exp), ("memory", time.memory)))  # fmt: skip
    return (
        f"limits of an {name}: all {len(report.calls)} calls take at least {time.seconds * 1e6:.1f} us ({parts}); "
        "launches are not counted, nothing of this is measured"
    )


def kernel_table(report: Report) -> Table:
    """Kernels, how long they took to build, and how often they ran."""
    table = Table()
    for name in ("kernel", "build, CPU seconds", "built", "launches"):
        table.add_column(name, justify="left" if name in ("kernel", "built") else "right")
    for row in report.kernels:
        launches = sum(call.kernel == row.name for call in report.calls)
        when = "earlier: found in the cache" if row.was_cached else "now"
        table.add_row(row.name, f"{row.seconds:.1f}", when, str(launches))
    return table


def traffic_table(report: Report) -> Table:
    """Bytes through global memory per text."""
    table = Table(
        caption="naive: q, k, v and out once, the scores S and the probabilities P each written and read;\n"
        "per layer 2 B x heads x (4 x tokens x head_dim + 4 x tokens x tokens)",
        caption_justify="left",
    )
    for name in ("text", "tokens", "moved", "naive", "naive / moved", "q, k, v, out once"):
        table.add_column(name, justify="left" if name == "text" else "right")
    for label, tokens in [*zip(report.labels, report.tokens, strict=True), ("all", sum(report.tokens))]:
        traffic = report.traffic(None if label == "all" else label)
        ratio = f"{traffic['naive'] / traffic['moved']:.2f} x"
        moved, naive, minimum = (f"{traffic[key] / 1e6:.2f} MB" for key in ("moved", "naive", "minimum"))
        table.add_row(label, str(tokens), moved, naive, ratio, minimum)
    return table


def similarity_table(report: Report) -> Table:
    """Cosine similarity of every pair of texts."""
    table = Table()
    for name in ("", *report.labels):
        table.add_column(name, justify="right")
    for label, row in zip(report.labels, report.similarity, strict=True):
        cells = (f"[bold]{value:.2f}[/]" if value > 0.5 else f"{value:.2f}" for value in row)
        table.add_row(label, *cells)
    return table
