# SPDX-License-Identifier: Apache-2.0
"""`attnsmith doctor`, `clean`, `build` and `inspect` from the command line, with no compiler behind them."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from attnsmith.codegen import build as build_module
from attnsmith.codegen.build import BuiltKernel
from attnsmith.codegen.cache import KernelCache
from attnsmith.codegen.errors import CompileError, ToolchainError
from attnsmith.tools import doctor as doctor_module
from attnsmith.tools import inspect as inspect_module
from attnsmith.tools.cli import main
from click.testing import CliRunner, Result


@pytest.fixture(autouse=True)
def cache_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache of the commands."""
    monkeypatch.setenv("ATTNSMITH_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def run(*arguments: str) -> Result:
    """The command with its exit code and output."""
    return CliRunner().invoke(main, list(arguments))


def fake_builds(monkeypatch: pytest.MonkeyPatch, log: str = "Used 128 registers") -> None:
    """build_kernels answers at once."""

    def fake(specs: Any, target: str, **options: Any) -> list[BuiltKernel]:
        return [
            BuiltKernel(
                spec=spec, target=target, name=spec.name, digest="0" * 64, directory=None, cubin=b"", ptx="", log=log,
                seconds=4.25, was_cached=index > 0,
            )
            for index, spec in enumerate(specs)
        ]  # fmt: skip

    monkeypatch.setattr(build_module, "build_kernels", fake)
    monkeypatch.setattr(inspect_module, "build_kernels", fake)
    monkeypatch.setattr(inspect_module, "find_cuobjdump", lambda: None)


def test_doctor_json_and_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    result = run("doctor", "--json")
    report = json.loads(result.stdout)
    assert result.exit_code == (0 if report["ok"] else 1)
    parts = {finding["part"]: finding for finding in report["findings"]}
    assert {"nvrtc", "cutlass headers", "cache", "nvcc", "gpu", "simulator"} <= set(parts)
    assert parts["python"]["ok"] and not parts["gpu"]["is_required"]


def test_doctor_says_what_to_do_about_a_missing_part(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> str:
        raise ToolchainError(asked="find NVRTC", got="none", allowed="one", do="Run `pip install nvidia-cuda-nvrtc`.")

    monkeypatch.setattr(doctor_module, "_nvrtc", missing)
    result = run("doctor")
    assert result.exit_code == 1
    assert "MISSING  nvrtc" in result.stdout and "pip install nvidia-cuda-nvrtc" in result.stdout


def test_doctor_with_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ATTNSMITH_CACHE_DIR", str(tmp_path / "file"))
    finding = {f["part"]: f for f in json.loads(run("doctor", "--json").stdout)["findings"]}["cache"]
    assert not finding["ok"] and "ATTNSMITH_CACHE_DIR" in finding["do"]


def test_doctor_leaves_no_file_behind(cache_root: Path) -> None:
    run("doctor")
    assert [path for path in cache_root.rglob("*") if path.is_file()] == []


def test_clean_dry_run_then_clean(cache_root: Path) -> None:
    cache = KernelCache(cache_root)
    old, new = cache.publish("0" * 64, {"f": b"12345"}, {}), cache.publish("1" * 64, {"f": b"1"}, {})
    os.utime(old, (time.time() - 3 * 86400,) * 2)
    dry = json.loads(run("clean", "--older-than", "2", "--dry-run", "--json").stdout)
    assert dry["removed"] == [str(old)] and dry["dry_run"] and old.is_dir()
    assert json.loads(run("clean", "--older-than", "2", "--json").stdout)["removed"] == [str(old)]
    assert not old.exists() and new.is_dir()
    result = run("clean")
    assert result.exit_code == 0 and str(new) in result.stdout and not new.exists()


def test_build_reports_each_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_builds(monkeypatch)
    result = run("build", "--set", "minimal", "--dtype", "fp16", "--head-dim", "64", "--json")
    report = json.loads(result.stdout)
    assert (report["mode"], report["target"], len(report["kernels"])) == ("jit", "sm_80", 2)
    assert [row["was_cached"] for row in report["kernels"]] == [False, True]
    text = run("build", "--set", "minimal", "--dtype", "fp16", "--head-dim", "64").stdout
    assert "4.2 s" in text and "cached" in text


def test_build_failure_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise CompileError(asked="compile k for sm_80", got="1 error", allowed="none", do="See /log.", log="")

    monkeypatch.setattr(build_module, "build_kernels", fail)
    result = run("build", "--set", "minimal")
    assert result.exit_code == 2
    assert "error: compile k for sm_80: got 1 error" in result.stderr and "Traceback" not in result.output


@pytest.mark.parametrize("arguments", [("--set", "nonsense"), ("--target", "sm_70"), ("--head-dim", "300")])
@pytest.mark.parametrize("name", ["build", "inspect"])
def test_wrong_selection_is_a_usage_error(name: str, arguments: tuple[str, ...]) -> None:
    result = run(name, *arguments)
    assert result.exit_code == 2 and "Traceback" not in result.output


def test_inspect_json_has_the_fixed_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_builds(monkeypatch, log="ptxas . 8 bytes spill stores, 4 bytes spill loads\nUsed 255 registers")
    rows = json.loads(run("inspect", "--set", "minimal", "--target", "sm_80", "--json").stdout)
    assert len(rows) == 8
    for row in rows:
        assert {"kernel", "arch", "op", "registers", "spill_bytes", "smem_bytes", "remarks", "loops"} <= set(row)
        assert (row["registers"], row["spill_bytes"]) == (255, 12)


def test_inspect_table_has_one_line_per_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_builds(monkeypatch)
    result = run("inspect", "--set", "minimal", "--target", "sm_80", "--dtype", "bf16")
    lines = result.stdout.strip().splitlines()
    assert len(lines) == 5 and lines[0].startswith("kernel") and all("128" in line for line in lines[1:])
    assert "4 kernels, 0 with spills" in result.stderr


def test_inspect_of_a_set_without_a_target_is_every_family(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_builds(monkeypatch)

    def targets(*arguments: str) -> dict[str, str]:
        rows = json.loads(run("inspect", *arguments, "--json").stdout)
        return {row["arch"]: row["target"] for row in rows}

    assert targets("--set", "minimal") == {"sm80": "sm_80", "sm90": "sm_90a"}
    assert targets("--set", "default", "--dtype", "e4m3") == {"sm90": "sm_90a"}
    assert targets("--set", "minimal", "--target", "sm_90a") == {"sm90": "sm_90a"}
    assert targets("--head-dim", "64", "--dtype", "bf16") == {"sm80": "sm_80"}
