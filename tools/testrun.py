# SPDX-License-Identifier: Apache-2.0
"""What `make test` runs after installing: the native parts are built first, then the tests in phases, then a summary.

A later phase runs even where an earlier one failed, so that one run shows everything. Not responsible for any test.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
REPORTS = CHECKOUT / "build" / "test-reports"

TEST_TIMEOUT_SECONDS = 600
"""Of one test: far beyond the slowest, so that a hang ends the run with a traceback instead of the CI's own limit."""

NATIVE_PARTS = """
import attnsmith
from attnsmith.progress import visible_progress
from attnsmith.tools.ptxsim.build import library_path
with visible_progress():
    print("simulator core:", library_path().name, flush=True)
print("launcher:", len(attnsmith.dispatch_table()), "kernels in the table")
"""


@dataclass(frozen=True, kw_only=True)
class Phase:
    """One pytest run."""

    name: str
    """As the summary prints it."""
    paths: tuple[str, ...]
    """Folders below the checkout; those that do not exist are left out."""


PHASES = (
    Phase(name="unit", paths=("tests/unit",)),
    Phase(name="compile", paths=("tests/compile",)),
    Phase(name="sim", paths=("tests/sim",)),
    Phase(name="gpu", paths=("tests/gpu",)),
)


@dataclass(kw_only=True)
class Outcome:
    """What a phase came to."""

    name: str
    code: int
    seconds: float
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    failures: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """pytest ended well; 5 is `no tests collected`, which only an absent folder may have."""
        return self.code == 0

    def line(self) -> str:
        """The summary's row."""
        verdict = "ok" if self.ok else f"FAILED (exit {self.code})"
        counts = f"{self.passed:5d} passed {self.failed:3d} failed {self.skipped:3d} skipped"
        return f"{self.name:<10s}{counts}  {self.seconds:6.0f} s  {verdict}"


def workers() -> str:
    """pytest-xdist workers: ATTNSMITH_TEST_WORKERS, else one per core up to 8."""
    return os.environ.get("ATTNSMITH_TEST_WORKERS") or str(min(os.cpu_count() or 1, 8))


def say(text: str) -> None:
    """One line, visible at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def read_report(outcome: Outcome, report: Path) -> Outcome:
    """Fill in the counts and the failed tests' names from a JUnit report, where pytest got to write one."""
    if not report.exists():
        return outcome
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        kinds = {child.tag for child in case}
        if kinds & {"failure", "error"}:
            outcome.failed += 1
            outcome.failures.append(f"{case.get('classname', '')}::{case.get('name', '')}")
        elif "skipped" in kinds:
            outcome.skipped += 1
        else:
            outcome.passed += 1
    return outcome


def run_phase(phase: Phase, extra: Sequence[str] = ()) -> Outcome | None:
    """Run one phase; None where none of its folders holds a test."""
    paths = [path for path in phase.paths if any((CHECKOUT / path).rglob("test_*.py"))]
    if not paths:
        return None
    report = REPORTS / f"{phase.name}.xml"
    report.unlink(missing_ok=True)
    limits = [f"--timeout={TEST_TIMEOUT_SECONDS}", "--durations=8"]
    command = [sys.executable, "-m", "pytest", *paths, "-q", "-n", workers(), f"--junitxml={report}", *limits, *extra]
    start = time.monotonic()
    code = subprocess.run(command, cwd=CHECKOUT, stdin=subprocess.DEVNULL, check=False).returncode
    outcome = Outcome(name=phase.name, code=code, seconds=time.monotonic() - start)
    return read_report(outcome, report)


def build_native_parts() -> Outcome:
    """The simulator core and the launcher, once, before test workers ask for them all at the same time."""
    start = time.monotonic()
    command = [sys.executable, "-c", NATIVE_PARTS]
    code = subprocess.run(command, cwd=CHECKOUT, stdin=subprocess.DEVNULL, check=False).returncode
    return Outcome(name="build", code=code, seconds=time.monotonic() - start)


def main(argv: Sequence[str] | None = None) -> int:
    """Run every phase; 0 iff all ended well."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--phase", action="append", choices=[phase.name for phase in PHASES], help="default: all")
    parser.add_argument("pytest", nargs="*", help="further pytest arguments, after --")
    arguments = parser.parse_args(argv)
    REPORTS.mkdir(parents=True, exist_ok=True)
    wanted = [phase for phase in PHASES if not arguments.phase or phase.name in arguments.phase]
    steps = len(wanted) + 1
    say(f"[1/{steps}] building the simulator core and the launcher (seconds when cached)")
    outcomes = [build_native_parts()]
    for number, phase in enumerate(wanted, start=2):
        say(f"[{number}/{steps}] {phase.name} tests, {workers()} workers")
        outcome = run_phase(phase, arguments.pytest)
        if outcome is None:
            say("      no tests there")
        else:
            outcomes.append(outcome)
    return summarize(outcomes)


def summarize(outcomes: Sequence[Outcome]) -> int:
    """Print the closing table; the exit code of the whole run."""
    say("")
    say("==== make test ====")
    for outcome in outcomes:
        say(outcome.line())
    for outcome in outcomes:
        for failure in outcome.failures:
            say(f"  failed: {failure}")
    ok = all(outcome.ok for outcome in outcomes)
    total = sum(outcome.seconds for outcome in outcomes)
    passed, skipped = sum(o.passed for o in outcomes), sum(o.skipped for o in outcomes)
    say(f"{'ALL PASSED' if ok else 'FAILED'}: {passed} tests passed, {skipped} skipped, in {total:.0f} s")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
