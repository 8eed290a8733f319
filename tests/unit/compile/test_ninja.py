# SPDX-License-Identifier: Apache-2.0
"""Ninja files that survive spaces and dollar signs, report progress, resume, and show what failed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from attnsmith.codegen.compile import jobs
from attnsmith.codegen.compile.ninja import (
    Edge,
    edge_seconds,
    find_ninja,
    join,
    ninja_on_path,
    run_ninja,
    write_ninja_file,
)  # fmt: skip
from attnsmith.codegen.errors import CompileError


def copy_edge(source: str, output: str, prefix: str = "") -> Edge:
    """Copies a file, and notes that it did."""
    command = f"{prefix}{join('cp', source, output)} && echo ran >> {join(output + '.runs')}"
    return Edge(output=output, inputs=(source,), command=command, description=f"copied {output}")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A build folder with what shells and ninja treat specially in its name, and one source."""
    path = tmp_path / "a $dir: with 'quotes'"
    path.mkdir()
    (path / "in put").write_text("content")
    return path


def test_runs_and_reports(folder: Path) -> None:
    write_ninja_file(folder / "build.ninja", [copy_edge("in put", "b"), copy_edge("b", "c $x")])
    steps: list[tuple[str, int, int]] = []
    run_ninja(folder / "build.ninja", jobs=1, asked="copy", on_step=lambda *step: steps.append(step))
    assert (folder / "c $x").read_text() == "content"
    assert steps == [("copied b", 1, 2), ("copied c $x", 2, 2)]
    assert set(edge_seconds(folder)) == {"b", "c $x"}


def test_finished_edges_are_not_run_again_after_a_failure(folder: Path) -> None:
    edges = [copy_edge("in put", "b"), copy_edge("b", "c", prefix="echo 'c.cu(3): error: bad' && false && ")]
    write_ninja_file(folder / "build.ninja", edges)
    with pytest.raises(CompileError, match=r"build it: got c.cu\(3\): error: bad") as caught:
        run_ninja(folder / "build.ninja", jobs=1, asked="build it")
    assert "error: bad" in caught.value.log
    write_ninja_file(folder / "build.ninja", [edges[0], copy_edge("b", "c")])
    run_ninja(folder / "build.ninja", jobs=1, asked="build it")
    assert (folder / "b.runs").read_text() == "ran\n"


def test_path_leads_to_ninja_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with ninja_on_path():
        assert os.environ["PATH"].split(os.pathsep)[0] == str(find_ninja().parent)
    assert os.environ["PATH"] == "/nowhere"


@pytest.mark.parametrize(
    ("available_gb", "num_tasks", "expected"),
    [(100, 1, 1), (100, 64, 4), (5.5, 64, 2), (1, 64, 1)],
    ids=["one task", "all cores", "memory for two", "never less than one"],
)
def test_jobs_by_tasks_cores_and_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, available_gb: float, num_tasks: int, expected: int
) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text(f"MemTotal: 1 kB\nMemAvailable: {int(available_gb * 1e9 / 1024)} kB\n")
    monkeypatch.setattr(jobs.os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    assert jobs.default_jobs(num_tasks, 2_500_000_000, meminfo, tmp_path / "no cgroup") == expected


def test_jobs_where_memory_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs.os, "sched_getaffinity", lambda _: {0, 1})
    assert jobs.default_jobs(9, 10**12, tmp_path / "absent", tmp_path / "absent") == 2


def test_a_containers_limit_counts(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemAvailable: 1000000 kB\n")
    (tmp_path / "memory.max").write_text("600000000\n")
    (tmp_path / "memory.current").write_text("300000000\n")
    (tmp_path / "memory.stat").write_text("anon 100000000\ninactive_file 200000000\n")
    assert jobs.available_bytes(meminfo, tmp_path) == 500_000_000
    (tmp_path / "memory.max").write_text("max\n")
    assert jobs.available_bytes(meminfo, tmp_path) == 1_024_000_000
