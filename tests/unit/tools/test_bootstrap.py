# SPDX-License-Identifier: Apache-2.0
"""The installation step: what it decides to do, what it records, and what a failure shows. pip never runs here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from attnsmith.tools import bootstrap


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "check out"
    folder.mkdir()
    (folder / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    return folder


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    for name in ("python", "pip"):
        (tmp_path / "venv" / "bin" / name).touch()
    return tmp_path / "venv"


def test_first_run_creates_and_installs(checkout: Path, tmp_path: Path) -> None:
    plan = bootstrap.make_plan(tmp_path / "none", checkout, "demo")
    assert (plan.create, plan.dependencies, plan.relink) == (True, True, False)


def test_second_run_has_nothing_to_do(checkout: Path, venv: Path) -> None:
    bootstrap.write_state(venv, checkout, "demo")
    plan = bootstrap.make_plan(venv, checkout, "demo")
    assert (plan.create, plan.dependencies, plan.relink) == (False, False, False)


def test_another_extra_installs_and_both_are_remembered(checkout: Path, venv: Path) -> None:
    bootstrap.write_state(venv, checkout, "demo")
    assert bootstrap.make_plan(venv, checkout, "test").dependencies
    bootstrap.write_state(venv, checkout, "test")
    assert not bootstrap.make_plan(venv, checkout, "demo").dependencies
    assert not bootstrap.make_plan(venv, checkout, "test").dependencies


def test_changed_dependencies_install_again_and_forget_the_extras(checkout: Path, venv: Path) -> None:
    bootstrap.write_state(venv, checkout, "demo")
    (checkout / "pyproject.toml").write_text("[project]\nname = 'y'\n")
    assert bootstrap.make_plan(venv, checkout, "demo").dependencies
    bootstrap.write_state(venv, checkout, "test")
    assert bootstrap.read_state(venv)["extras"] == ["test"]


def test_another_checkout_only_relinks(checkout: Path, venv: Path, tmp_path: Path) -> None:
    bootstrap.write_state(venv, checkout, "test")
    clone = tmp_path / "clone"
    clone.mkdir()
    (clone / "pyproject.toml").write_bytes((checkout / "pyproject.toml").read_bytes())
    plan = bootstrap.make_plan(venv, clone, "test")
    assert (plan.create, plan.dependencies, plan.relink) == (False, False, True)


@pytest.mark.parametrize("damage", ["", "{", "[1]", "null", '{"extras": 3}'])
def test_damaged_state_installs_again(checkout: Path, venv: Path, damage: str) -> None:
    (venv / bootstrap.STATE_FILE).write_text(damage)
    assert bootstrap.make_plan(venv, checkout, "demo").dependencies


def test_interrupted_creation_is_repeated(checkout: Path, venv: Path) -> None:
    bootstrap.write_state(venv, checkout, "demo")
    (venv / "bin" / "pip").unlink()
    assert bootstrap.make_plan(venv, checkout, "demo").create


def test_failed_install_is_not_recorded(checkout: Path, venv: Path) -> None:
    def fail(command: list[str], log: Path, **_: object) -> None:
        raise bootstrap.BootstrapError("pip failed")

    plan = bootstrap.make_plan(venv, checkout, "demo")
    with pytest.raises(bootstrap.BootstrapError):
        bootstrap.install(venv, checkout, "demo", plan, run=fail)
    assert bootstrap.read_state(venv) == {}


def test_install_passes_one_target_argument_even_with_spaces(checkout: Path, venv: Path) -> None:
    commands: list[list[str]] = []
    plan = bootstrap.make_plan(venv, checkout, "demo")
    bootstrap.install(venv, checkout, "demo", plan, run=lambda command, log, **_: commands.append(command))
    assert commands[-1][-2:] == ["--editable", f"{checkout}[demo]"]
    assert json.loads((venv / bootstrap.STATE_FILE).read_text())["extras"] == ["demo"]


def test_failure_shows_the_command_and_the_end_of_its_log(tmp_path: Path) -> None:
    script = "import sys; print('first'); print('no matching distribution'); sys.exit(3)"
    with pytest.raises(bootstrap.BootstrapError, match=r"(?s)exited with 3.*no matching distribution"):
        bootstrap.run_logged([sys.executable, "-c", script], tmp_path / "log")


def test_heartbeat_shows_what_a_silent_step_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = "import time; print('Collecting torch', flush=True); time.sleep(0.6)"
    bootstrap.run_logged([sys.executable, "-c", script], tmp_path / "log", heartbeat=0.25, detail=lambda: "12 packages")
    shown = capsys.readouterr().out
    assert "Collecting torch" in shown and "12 packages" in shown


def test_packages_are_counted(venv: Path) -> None:
    for name in ("torch-2.14.1", "click-8.5.1"):
        (venv / "lib" / "python3.11" / "site-packages" / f"{name}.dist-info").mkdir(parents=True)
    assert bootstrap.packages_in(venv).strip() == "2 packages in place"


def test_it_runs_as_a_script_beside_modules_named_like_the_standard_library() -> None:
    script = bootstrap.CHECKOUT / "tools" / "bootstrap.py"
    done = subprocess.run([sys.executable, "-I", script, "--help"], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "--venv" in done.stdout, done.stderr
    assert "-I tools/bootstrap.py" in (bootstrap.CHECKOUT / "Makefile").read_text()
