# SPDX-License-Identifier: Apache-2.0
"""A progress bar on stderr for commands that compile: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

Report = Callable[[str, int, int], None]
"""Message, finished steps, all steps (attnsmith.codegen.build.Progress)."""


@contextlib.contextmanager
def progress_bar(title: str, is_quiet: bool = False) -> Iterator[Report]:
    """Yields the function to report with; any thread may call it."""
    console = Console(stderr=True, quiet=is_quiet)
    if not console.is_terminal:
        yield _line_report(console)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(title, total=None)

        def report(message: str, done: int, total: int) -> None:
            progress.update(task, completed=done, total=total)
            progress.console.print(f"  {message}", highlight=False, markup=False)

        yield report


def is_quiet() -> bool:
    """Whether `attnsmith --quiet` runs the current command."""
    context = click.get_current_context()
    return bool(context.parent and context.parent.params.get("quiet"))


def _line_report(console: Console) -> Report:
    start, lock = time.monotonic(), threading.Lock()

    def report(message: str, done: int, total: int) -> None:
        with lock:
            line = f"[{done}/{total}] {message} ({time.monotonic() - start:.0f} s)"
            console.print(line, highlight=False, markup=False, soft_wrap=True)

    return report
