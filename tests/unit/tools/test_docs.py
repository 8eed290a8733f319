# SPDX-License-Identifier: Apache-2.0
"""README and docs against the project: links lead somewhere, commands parse, make targets and named files exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest
from attnsmith.codegen.registry import kernel_set
from attnsmith.tools.cli import main
from attnsmith.tools.roofline import GPUS, predictions_table

ROOT = Path(__file__).resolve().parents[3]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]


def page_id(page: Path) -> str:
    return str(page.relative_to(ROOT))


def commands(text: str) -> list[str]:
    """Indented command lines, without comments; output that a page quotes does not start like one."""
    found = re.findall(r"^    ((?:attnsmith|make|python) [^\n#]*)", text, re.MULTILINE)
    return [line.strip() for line in found]


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"\s+", " ", page.read_text())
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", text)
    missing = [link for link in targets if "://" not in link and not (page.parent / link).exists()]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_attnsmith_commands_parse(page: Path) -> None:
    for line in commands(page.read_text()):
        words = shlex.split(line)
        if words[0] != "attnsmith" or any(word.isupper() and "." in word for word in words):
            continue
        with click.Context(main) as context:
            command = main.get_command(context, words[1])
            assert command is not None, line
            command.make_context(words[1], words[2:])


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_make_targets_exist(page: Path) -> None:
    makefile = (ROOT / "Makefile").read_text()
    for line in commands(page.read_text()):
        words = line.split()
        if words[0] == "make":
            assert re.search(rf"^{re.escape(words[1])}:", makefile, re.MULTILINE), line
            for variable in (word.split("=")[0] for word in words[2:] if "=" in word):
                assert re.search(rf"^{variable} \?=", makefile, re.MULTILINE), line


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_files_that_a_page_names_exist(page: Path) -> None:
    named = re.findall(r"`((?:codegen|templates|bindings|tools|tests|docs)/[\w/.-]+\.\w+)`", page.read_text())
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_pages_have_commands_to_check() -> None:
    assert len(commands((ROOT / "README.md").read_text())) >= 8


BEGIN, END = "<!-- predictions: begin -->\n", "<!-- predictions: end -->"


def test_predictions_are_what_the_default_tiles_give(update_golden: bool) -> None:
    """Written by --update-golden where a tile has changed."""
    page = ROOT / "docs" / "kernels-sm90.md"
    specs = [spec for spec in kernel_set("default", "sm_90a") if spec.tile.num_warps > 4]
    table = "\n".join(predictions_table(specs, GPUS["h100"], per_score=6.0)) + "\n"
    before, rest = page.read_text().split(BEGIN)
    found, after = rest.split(END)
    if update_golden:
        page.write_text(before + BEGIN + table + END + after)
    else:
        assert found == table


def test_the_figure_is_what_its_script_names() -> None:
    script = ROOT / "docs" / "figures" / "data_flow.py"
    picture = script.with_suffix(".svg").read_text()
    assert picture.startswith("<?xml") and picture.rstrip().endswith("</svg>")
