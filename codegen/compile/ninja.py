# SPDX-License-Identifier: Apache-2.0
"""Writes and runs ninja files: shell-safe commands, progress, the log of what failed. Not responsible for the rules."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from attnsmith.codegen.errors import CompileError, ToolchainError

_STATUS = re.compile(r"^@(\d+)/(\d+)@ (.*)$")


@dataclass(frozen=True, kw_only=True)
class Edge:
    """One command of a build. Paths are relative to the build's folder, so that spaces above it do not matter."""

    output: str
    """The file it makes."""
    inputs: tuple[str, ...]
    """Files that it reads."""
    command: str
    """Shell text; build it with shlex.join."""
    description: str
    """Shown when it ends."""


def find_ninja() -> Path:
    """The ninja of the wheel, whatever PATH is, else PATH's. Raises ToolchainError."""
    with contextlib.suppress(ImportError):
        import ninja

        wheel = Path(ninja.BIN_DIR) / "ninja"
        if os.access(wheel, os.X_OK):
            return wheel
    found = shutil.which("ninja")
    if found:
        return Path(found)
    raise ToolchainError(
        asked="find ninja",
        got="neither the ninja package nor a ninja on PATH",
        allowed="ninja 1.8 or newer",
        do="Run `pip install ninja`.",
    )


@contextlib.contextmanager
def ninja_on_path() -> Iterator[None]:
    """PATH leads to find_ninja() meanwhile: torch.utils.cpp_extension looks nowhere else."""
    before = os.environ.get("PATH", "")
    os.environ["PATH"] = os.pathsep.join([str(find_ninja().parent), before])
    try:
        yield
    finally:
        os.environ["PATH"] = before


def write_ninja_file(path: Path, edges: Sequence[Edge]) -> None:
    """One rule per edge; unchanged text leaves ninja's record of finished edges valid."""
    text = ["ninja_required_version = 1.8", ""]
    for number, edge in enumerate(edges):
        text += [
            f"rule r{number}",
            f"  command = {_escaped(edge.command)}",
            f"  description = {_escaped(edge.description)}",
            f"build {_escaped_path(edge.output)}: r{number} {' '.join(map(_escaped_path, edge.inputs))}",
            "",
        ]
    path.write_text("\n".join(text), encoding="utf-8")


def _escaped(text: str) -> str:
    return text.replace("$", "$$").replace("\n", " ")


def _escaped_path(text: str) -> str:
    return _escaped(text).replace(" ", "$ ").replace(":", "$:")


def run_ninja(path: Path, *, jobs: int, asked: str, on_step: Callable[[str, int, int], None] | None = None) -> None:
    """Runs `path` in its folder. `on_step` gets description, finished and all edges. Raises CompileError with log."""
    command = [str(find_ninja()), "-f", path.name, "-j", str(jobs)]
    environment = {**os.environ, "NINJA_STATUS": "@%f/%t@ ", "TERM": "dumb"}
    process = subprocess.Popen(
        command, cwd=path.parent, env=environment, text=True, errors="replace",
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    log: list[str] = []
    try:
        assert process.stdout is not None
        for line in process.stdout:
            match = _STATUS.match(line.rstrip("\n"))
            if match and on_step:
                on_step(match.group(3), int(match.group(1)), int(match.group(2)))
            if not match:
                log.append(line)
        status = process.wait()
    finally:
        if process.poll() is None:
            process.terminate()  # ninja ends its children and removes their outputs
            process.wait()
    if status != 0:
        raise _failure(asked, status, "".join(log))


def _failure(asked: str, status: int, log: str) -> CompileError:
    lines = log.splitlines()
    # ninja prints the failed command in the line after FAILED: it is no diagnostic.
    said = [line for before, line in zip(["", *lines], lines, strict=False) if not before.startswith("FAILED:")]
    first = next((line.strip() for line in said if re.search(r"\berror\b|\bfatal\b", line)), "")
    return CompileError(
        asked=asked,
        got=first or f"exit status {status}: {log.strip()[-300:]}",
        allowed="a source that compiles",
        do="See the log. A compiler that was killed means too little memory: lower --jobs.",
        log=log,
    )


def edge_seconds(folder: Path) -> dict[str, float]:
    """Wall seconds of each finished edge by output, from ninja's own log."""
    seconds: dict[str, float] = {}
    with contextlib.suppress(OSError, ValueError):
        for line in (folder / ".ninja_log").read_text(encoding="utf-8").splitlines():
            parts = line.split("\t")
            if len(parts) >= 4 and not line.startswith("#"):
                seconds[parts[3]] = (int(parts[1]) - int(parts[0])) / 1000
    return seconds


def join(*arguments: str | Path) -> str:
    """A command's shell text."""
    return shlex.join(str(argument) for argument in arguments)
