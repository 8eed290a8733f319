# SPDX-License-Identifier: Apache-2.0
"""The closing summary of `make test`: counts from JUnit reports, and an exit code that no failure slips past."""

from __future__ import annotations

from pathlib import Path

import pytest
from attnsmith.tools.testrun import Outcome, read_report, summarize

REPORT = """<testsuites><testsuite>
<testcase classname="a" name="one"/>
<testcase classname="a" name="two"><failure message="x"/></testcase>
<testcase classname="b" name="three"><error message="x"/></testcase>
<testcase classname="b" name="four"><skipped message="needs a GPU"/></testcase>
</testsuite></testsuites>"""


def test_counts_and_names_come_from_the_report(tmp_path: Path) -> None:
    report = tmp_path / "r.xml"
    report.write_text(REPORT)
    outcome = read_report(Outcome(name="unit", code=1, seconds=1.0), report)
    assert (outcome.passed, outcome.failed, outcome.skipped) == (1, 2, 1)
    assert outcome.failures == ["a::two", "b::three"]


def test_missing_report_leaves_the_exit_code(tmp_path: Path) -> None:
    outcome = read_report(Outcome(name="sim", code=-9, seconds=1.0), tmp_path / "none.xml")
    assert not outcome.ok


@pytest.mark.parametrize(("codes", "expected"), [((0, 0), 0), ((0, 1), 1), ((-11, 0), 1), ((0, 5), 1)])
def test_summary_fails_iff_a_phase_failed(
    codes: tuple[int, ...], expected: int, capsys: pytest.CaptureFixture[str]
) -> None:
    outcomes = [Outcome(name=f"phase{i}", code=code, seconds=1.0, passed=2) for i, code in enumerate(codes)]
    assert summarize(outcomes) == expected
    assert ("ALL PASSED" in capsys.readouterr().out) == (expected == 0)
