# SPDX-License-Identifier: Apache-2.0
"""The sdist and the wheel, really built from a copy of the checkout: complete, pure Python, and usable without it."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = {
    "bindings": "attnsmith",
    "codegen": "attnsmith/codegen",
    "templates": "attnsmith/templates",
    "tools": "attnsmith/tools",
}
TOP_LEVEL = ("pyproject.toml", "README.md", "LICENSE")


def build(command: str, source: Path, out: Path) -> Path:
    """Call one PEP 517 hook of setuptools in `source`; the path of what it built."""
    code = f"import setuptools.build_meta as hooks, sys; print(hooks.{command}(sys.argv[1]))"
    result = subprocess.run([sys.executable, "-c", code, str(out)], cwd=source, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-2000:]
    return out / result.stdout.strip().splitlines()[-1]


@pytest.fixture(scope="module")
def archives(tmp_path_factory):
    """(sdist, wheel built from the unpacked sdist)."""
    spec = importlib.util.find_spec("setuptools")
    if spec is None:
        pytest.skip("needs setuptools: pip install -e .[test]")
    work = tmp_path_factory.mktemp("package")
    checkout = work / "a checkout"
    ignore = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, checkout / folder, ignore=ignore)
    for name in TOP_LEVEL:
        shutil.copy(ROOT / name, checkout / name)
    out = work / "out"
    out.mkdir()
    sdist = build("build_sdist", checkout, out)
    with tarfile.open(sdist) as archive:
        archive.extractall(work / "sdist", filter="data")
    (unpacked,) = (work / "sdist").iterdir()
    return sdist, build("build_wheel", unpacked, out)


def expected_files() -> set[str]:
    """Wheel paths of every source file of the checkout."""
    files = set()
    for folder, package in FOLDERS.items():
        for path in (ROOT / folder).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts and not path.name.startswith("."):
                files.add(f"{package}/{path.relative_to(ROOT / folder).as_posix()}")
    return files


def test_wheel_has_every_file_and_nothing_else(archives):
    with zipfile.ZipFile(archives[1]) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert names == expected_files()


def test_wheel_is_pure_python(archives):
    assert archives[1].name.endswith("-py3-none-any.whl")


def test_sdist_has_every_file(archives):
    with tarfile.open(archives[0]) as sdist:
        names = {name.split("/", 1)[1] for name in sdist.getnames() if "/" in name}
    for folder, package in FOLDERS.items():
        wanted = {f"{folder}{name.removeprefix(package)}" for name in expected_files() if package_of(name) == package}
        assert wanted <= names
    assert set(TOP_LEVEL) <= names


def package_of(name: str) -> str:
    """The longest of the four packages that a wheel path is in."""
    return max((package for package in FOLDERS.values() if name.startswith(package + "/")), key=len)


def test_wheel_metadata_declares_the_command_and_the_extras(archives):
    with zipfile.ZipFile(archives[1]) as wheel:
        names = [name for name in wheel.namelist() if ".dist-info/" in name]
        texts = {name.rsplit("/", 1)[1]: wheel.read(name).decode() for name in names}
    assert "attnsmith = attnsmith.tools.cli:main" in texts["entry_points.txt"]
    assert "Requires-Dist: torch>=" in texts["METADATA"]
    for extra in ("demo", "test", "toolkit", "lint"):
        assert f"Provides-Extra: {extra}" in texts["METADATA"]


def test_unpacked_wheel_renders_and_writes_nothing_beside_itself(archives, tmp_path):
    installed = tmp_path / "site"
    with zipfile.ZipFile(archives[1]) as wheel:
        wheel.extractall(installed)
    before = sorted(path for path in installed.rglob("*"))
    code = (
        "import attnsmith, pathlib, sys\n"
        "assert pathlib.Path(attnsmith.__file__).is_relative_to(sys.argv[1]), attnsmith.__file__\n"
        "from attnsmith.tools.cli import main\n"
        "main(['generate', '--set', 'minimal'], standalone_mode=False)\n"
    )
    env = {"PYTHONPATH": str(installed), "ATTNSMITH_CACHE_DIR": str(tmp_path / "cache"), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", code, str(installed)]
    result = subprocess.run(command, capture_output=True, text=True, env=env, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert len(list((tmp_path / "cache" / "generated").glob("*.cu"))) == 8
    assert sorted(path for path in installed.rglob("*")) == before
