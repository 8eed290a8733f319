# SPDX-License-Identifier: Apache-2.0
"""The installation step of make and of CI: a virtual environment that holds this checkout, with visible progress.

Run as a script by the system's Python (`python3 -I tools/bootstrap.py --venv .venv --extra demo`; -I, because this
folder has an inspect.py of its own), so: standard library only, and nothing of attnsmith is imported. A second run
with nothing to do takes a fraction of a second. Not responsible for building kernels, the launcher or the simulator:
those build on first use.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

MIN_PYTHON = (3, 10)
STATE_FILE = "attnsmith-install.json"
LOCK_FILE = "attnsmith-install.lock"
LOG_FILE = "attnsmith-pip.log"
HEARTBEAT_SECONDS = 10.0
CHECKOUT = Path(__file__).resolve().parent.parent


class BootstrapError(RuntimeError):
    """An installation step that failed; the message says which and where its log is."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What an installation has to do."""

    create: bool
    """The virtual environment does not exist yet (or is broken)."""
    dependencies: bool
    """pip has to resolve and install the package with its extra."""
    relink: bool
    """Only the editable link has to point at this checkout."""


def say(text: str) -> None:
    """One progress line, visible at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def pyproject_digest(checkout: Path) -> str:
    """sha256 of pyproject.toml: a change of dependencies or packages changes it."""
    return hashlib.sha256((checkout / "pyproject.toml").read_bytes()).hexdigest()


def read_state(venv: Path) -> dict[str, object]:
    """What the last successful installation recorded; empty where there was none or the file is damaged."""
    try:
        state = json.loads((venv / STATE_FILE).read_text())
    except (OSError, ValueError):
        return {}
    return state if isinstance(state, dict) else {}


def make_plan(venv: Path, checkout: Path, extra: str) -> Plan:
    """Compare the recorded state with what is asked for."""
    if not ((venv / "bin" / "python").exists() and (venv / "bin" / "pip").exists()):
        return Plan(create=True, dependencies=True, relink=False)
    state = read_state(venv)
    extras = state.get("extras")
    known = state.get("pyproject") == pyproject_digest(checkout) and isinstance(extras, list) and extra in extras
    return Plan(create=False, dependencies=not known, relink=known and state.get("checkout") != str(checkout))


def write_state(venv: Path, checkout: Path, extra: str) -> None:
    """Record a successful installation; extras of the same pyproject.toml and checkout accumulate."""
    state = read_state(venv)
    digest = pyproject_digest(checkout)
    extras = state.get("extras") if state.get("pyproject") == digest else []
    merged = sorted({*(extras if isinstance(extras, list) else []), extra})
    temporary = venv / (STATE_FILE + ".tmp")
    temporary.write_text(json.dumps({"checkout": str(checkout), "pyproject": digest, "extras": merged}, indent=1))
    os.replace(temporary, venv / STATE_FILE)


def last_line(log: Path) -> str:
    """The last non-empty line of a log, shortened to fit one terminal line."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1][:80] if lines else ""


def packages_in(venv: Path) -> str:
    """How many packages an environment holds: pip's log is silent while it unpacks one after the other."""
    return f"{len(list(venv.glob('lib/python*/site-packages/*.dist-info'))):3d} packages in place"


def run_logged(
    command: Sequence[str], log: Path, *, heartbeat: float = HEARTBEAT_SECONDS, detail: Callable[[], str] = str
) -> None:
    """Run a command with its output in `log`; a line every `heartbeat` seconds, with `detail`, says that it is alive.

    Raises:
        BootstrapError: the command failed; the message ends with the last lines of the log.
    """
    start = time.monotonic()
    with log.open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
        while True:
            try:
                code = process.wait(timeout=heartbeat)
                break
            except subprocess.TimeoutExpired:
                say(f"      {time.monotonic() - start:4.0f} s  {detail()}  {last_line(log)}")
    if code != 0:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-25:])
        raise BootstrapError(f"{' '.join(command)} exited with {code}. Its last lines (all of them: {log}):\n{tail}")


@contextmanager
def locked(venv: Path) -> Iterator[None]:
    """One installation into a virtual environment at a time; the lock is the operating system's and dies with us."""
    venv.mkdir(parents=True, exist_ok=True)
    with (venv / LOCK_FILE).open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"      waiting for another installation into {venv}")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def has_setuptools(python: Path) -> bool:
    """Whether the environment can build an editable link by itself, without fetching a build environment."""
    probe = "import setuptools, sys; sys.exit(int(setuptools.__version__.split('.')[0]) < 77)"
    return subprocess.run([python, "-c", probe], capture_output=True, check=False).returncode == 0


def install(venv: Path, checkout: Path, extra: str, plan: Plan, run: Callable[..., None] = run_logged) -> None:
    """Carry out a plan, a progress line per phase."""
    python, log = venv / "bin" / "python", venv / LOG_FILE
    version = ".".join(map(str, sys.version_info[:3]))
    if plan.create:
        say(f"[1/3] creating {venv} with Python {version}")
        run([sys.executable, "-m", "venv", str(venv)], log)
    else:
        say(f"[1/3] {venv} exists")
    pip = [str(python), "-m", "pip", "install", "--disable-pip-version-check", "--progress-bar", "off"]
    target = f"{checkout}[{extra}]" if extra else str(checkout)
    if plan.dependencies:
        say(f"[2/3] installing attnsmith[{extra}] and what it needs: PyTorch with CUDA is about 6 GB on disk")
        run([*pip, "--editable", target], log, detail=lambda: packages_in(venv))
    elif plan.relink:
        say("[2/3] pointing the environment at this checkout")
        isolation = ["--no-build-isolation"] if has_setuptools(python) else []
        run([*pip, "--no-deps", *isolation, "--editable", str(checkout)], log)
    else:
        say("[2/3] attnsmith is installed")
    if plan.create or plan.dependencies or plan.relink:
        write_state(venv, checkout, extra)


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Command line of the script."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--venv", type=Path, required=True, help="the virtual environment to create or reuse")
    parser.add_argument("--extra", default="", help="the extra of attnsmith to install, for example demo or test")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    arguments = parse_arguments(argv)
    if sys.version_info[:2] < MIN_PYTHON:
        say(f"error: Python {sys.version.split()[0]} found; attnsmith needs {'.'.join(map(str, MIN_PYTHON))} or newer.")
        say("Run make PYTHON=python3.11 (or any newer interpreter).")
        return 2
    venv = arguments.venv.absolute()
    start = time.monotonic()
    try:
        with locked(venv):
            install(venv, CHECKOUT, arguments.extra, make_plan(venv, CHECKOUT, arguments.extra))
    except (BootstrapError, OSError) as error:
        say(f"error: {error}")
        return 1
    say(f"[3/3] ready after {time.monotonic() - start:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
