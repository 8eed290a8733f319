# SPDX-License-Identifier: Apache-2.0
"""What importing costs: the root and the generator import no torch, and nothing touches CUDA."""

from __future__ import annotations

import subprocess
import sys

import attnsmith
import pytest


def run(code: str) -> None:
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


@pytest.mark.parametrize("module", ["attnsmith", "attnsmith.codegen", "attnsmith.codegen.dispatch", "attnsmith.errors"])
def test_imports_no_torch(module: str) -> None:
    run(f"import {module}, sys; assert 'torch' not in sys.modules, 'torch was imported'")


def test_no_import_initializes_cuda() -> None:
    run(
        "import pkgutil, importlib, attnsmith, torch\n"
        "for info in pkgutil.iter_modules(attnsmith.__path__, 'attnsmith.'):\n"
        "    importlib.import_module(info.name)\n"
        "assert not torch.cuda.is_initialized()\n"
    )


@pytest.mark.parametrize("name", [name for name in attnsmith.__all__ if name != "__version__"])
def test_exports_resolve(name: str) -> None:
    assert callable(getattr(attnsmith, name))
    assert name in dir(attnsmith)


def test_submodules_resolve_without_an_import_of_their_own() -> None:
    run("import attnsmith; assert attnsmith.reference.attention and attnsmith.errors.ArgumentError")
    run("import attnsmith; assert attnsmith.integrations.transformers.register")


def test_version_is_that_of_the_distribution() -> None:
    from importlib.metadata import version

    assert attnsmith.__version__ == version("attnsmith")


def test_unknown_names_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = attnsmith.nothing
