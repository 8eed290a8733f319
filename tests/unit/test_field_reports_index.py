# SPDX-License-Identifier: Apache-2.0
"""docs/field-reports.md and the tests name each other: no covered row without its test, no named test without a row."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "field-reports.md"
AREAS = ("num", "mask", "var", "shp", "lay", "grd", "det", "kv", "fp8", "int", "hf", "bld", "tun", "cli")


def short_names(text: str) -> dict[str, str]:
    """The page's short names of test files."""
    line = next(line for line in text.splitlines() if line.startswith("Short names:"))
    return dict(re.findall(r"(\w+) = `([^`]+)`", line))


def rows(text: str) -> dict[str, str]:
    """id -> the cell that says where it is covered."""
    found = re.findall(r"^\| ([A-Z0-9]+-\d+) \| [^|]* \| (.*) \|$", text, re.MULTILINE)
    assert len(found) == len({name for name, _ in found}), "an id twice"
    return dict(found)


def test_every_named_test_exists() -> None:
    text = PAGE.read_text()
    files = short_names(text)
    missing = []
    for report, cell in rows(text).items():
        named = [(files[short], test) for short, test in re.findall(r"(?<![`\w])(\w+) `(test_\w+)`", cell)]
        named += re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", cell)
        named += [(path, "") for path in re.findall(r"`(tests/[\w/]+\.py)`", cell)]
        assert named or cell.startswith("not yet: "), f"{report}: neither covered nor explained"
        for path, test in named:
            source = (ROOT / path).read_text() if (ROOT / path).exists() else ""
            if f"def {test}(" not in source and not (test == "" and source):
                missing.append(f"{report}: {path}::{test}")
    assert missing == []


def test_every_test_named_by_an_id_is_listed() -> None:
    text = PAGE.read_text()
    listed = rows(text)
    pattern = re.compile(rf"def (test_({'|'.join(AREAS)})_(\d\d)_\w+)\(")
    unlisted = []
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for test, area, number in pattern.findall(path.read_text()):
            report = f"{area.upper()}-{number}"
            if report not in listed or listed[report].startswith("not yet"):
                unlisted.append(f"{path.relative_to(ROOT)}::{test}")
    assert unlisted == []


def test_the_count_at_the_top_is_right() -> None:
    text = PAGE.read_text()
    covered = [report for report, cell in rows(text).items() if not cell.startswith("not yet")]
    assert f"{len(covered)} of {len(rows(text))} reports are covered." in text
