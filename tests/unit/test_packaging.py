# SPDX-License-Identifier: Apache-2.0
"""Every file of the four folders is in a listed package, and importing the generator stays cheap.

A subpackage or a file suffix that pyproject.toml does not list is missing from the wheel only: this walks the folders.
The wheel itself is built in tests/compile/test_wheel.py.
"""

from __future__ import annotations

import fnmatch
import os
import subprocess
import sys
from pathlib import Path

import pytest

tomllib = pytest.importorskip("tomllib")

ROOT = Path(__file__).parents[2]
SETUPTOOLS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
FOLDERS = {ROOT / folder: package for package, folder in SETUPTOOLS["package-dir"].items()}


def package_of(folder: Path) -> str:
    """The package that a folder would be."""
    for root, package in FOLDERS.items():
        if folder == root or root in folder.parents:
            return ".".join([package, *folder.relative_to(root).parts])
    raise AssertionError(f"{folder} is in no package folder")


def source_files() -> list[Path]:
    """Files of the four folders, without caches and hidden files."""
    files = [path for root in FOLDERS for path in sorted(root.rglob("*")) if path.is_file()]
    return [f for f in files if "__pycache__" not in f.parts and not f.name.startswith(".")]


def is_listed_data(path: Path) -> bool:
    """True when a package-data glob of the file's package (the nearest folder with an __init__.py) takes it."""
    folder = path.parent
    while not (folder / "__init__.py").is_file():
        folder = folder.parent
    patterns = SETUPTOOLS["package-data"].get(package_of(folder), [])
    relative = path.relative_to(folder).as_posix()
    return any(
        fnmatch.fnmatchcase(relative, pattern) and relative.count("/") == pattern.count("/") for pattern in patterns
    )


def test_every_python_folder_is_a_listed_package():
    folders = {path.parent for path in source_files() if path.suffix == ".py"}
    assert {package_of(folder) for folder in folders} == set(SETUPTOOLS["packages"])
    assert all((folder / "__init__.py").is_file() for folder in folders)


def test_every_other_file_is_listed_data():
    data = [path for path in source_files() if path.suffix != ".py"]
    assert [str(path.relative_to(ROOT)) for path in data if not is_listed_data(path)] == []


def test_the_walk_sees_the_known_kinds():
    suffixes = {path.suffix for path in source_files()}
    assert {".py", ".j2", ".hpp", ".cpp", ".h"} <= suffixes


@pytest.mark.parametrize(
    "path", ["templates/new/deep.hpp", "bindings/csrc/kernel.cuh", "tools/data.json", "codegen/tuned/deep/a100.json"]
)
def test_an_unlisted_file_would_be_noticed(path):
    assert not is_listed_data(ROOT / path)


CHEAP = ["attnsmith", "attnsmith.codegen", "attnsmith.templates", "attnsmith.tools", "attnsmith.tools.cli"] + [
    f"attnsmith.codegen.{path.stem}" for path in sorted((ROOT / "codegen").glob("*.py")) if path.stem != "__init__"
]


def test_importing_the_generator_imports_no_torch():
    code = (
        "import importlib, sys\n"
        "for name in sys.argv[1:]:\n"
        "    importlib.import_module(name)\n"
        "    heavy = {'torch', 'triton', 'transformers', 'numpy'} & set(sys.modules)\n"
        "    assert not heavy, (name, heavy)\n"
    )
    result = subprocess.run([sys.executable, "-c", code, *CHEAP], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def test_every_module_imports_without_a_gpu_and_without_starting_cuda():
    """BLD-28."""
    code = (
        "import importlib, pkgutil, sys\n"
        "import attnsmith\n"
        "names = [m.name for m in pkgutil.walk_packages(attnsmith.__path__, 'attnsmith.')]\n"
        "for package in ('attnsmith.codegen', 'attnsmith.tools', 'attnsmith.templates'):\n"
        "    module = importlib.import_module(package)\n"
        "    names += [m.name for m in pkgutil.walk_packages(module.__path__, package + '.')]\n"
        "for name in names:\n"
        "    if not name.endswith('__main__'):\n"
        "        importlib.import_module(name)\n"
        "import torch\n"
        "assert not torch.cuda.is_initialized()\n"
        "print(len(names))\n"
    )
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
    assert result.returncode == 0, result.stderr[-2000:]
    assert int(result.stdout) >= len(CHEAP)


def test_the_checkout_is_never_imported_as_top_level_packages():
    """`import codegen` would make a second copy of every class."""
    banned = set(FOLDERS[root].split(".")[-1] for root in FOLDERS) | {root.name for root in FOLDERS}
    ruff = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["ruff"]["lint"]
    assert {"codegen", "bindings", "tools", "templates"} <= set(ruff["flake8-tidy-imports"]["banned-api"]) & banned
