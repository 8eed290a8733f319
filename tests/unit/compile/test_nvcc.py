# SPDX-License-Identifier: Apache-2.0
"""nvcc discovery on fake toolkits: wrapper scripts, incomplete ones, releases that do not fit, spaces in paths."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from attnsmith.codegen.cuda_roots import Surroundings
from attnsmith.codegen.errors import ToolchainError
from attnsmith.codegen.nvcc import find_nvcc, nvcc_home

Around = Callable[..., Surroundings]


def wrapper_of(trees: Any, toolkit: Path, path: Path) -> Path:
    """A script that execs the toolkit's nvcc, whose dry run says where it is."""
    trees.script(
        toolkit / "bin" / "nvcc",
        'case "$1" in',
        f"--dryrun) echo '#$ _HERE_={toolkit}/bin'; echo '#$ TOP={toolkit}/bin/..' >&2 ;;",
        "*) echo 'Cuda compilation tools, release 13.0, V13.0.88' ;;",
        "esac",
    )
    return trees.script(path, f"exec '{toolkit}/bin/nvcc' \"$@\"")


def test_wrapper_script_on_path_leads_to_its_toolkit(trees: Any, tmp_path: Path, surroundings: Around) -> None:
    toolkit = trees.make_toolkit(tmp_path / "real toolkit")
    wrapper = wrapper_of(trees, toolkit, tmp_path / "usr local" / "bin" / "nvcc")
    found = find_nvcc(surroundings(PATH=str(wrapper.parent)))
    assert (found.home, found.path, found.origin) == (toolkit, toolkit / "bin" / "nvcc", "PATH")


def test_cuda_home_whose_nvcc_is_a_wrapper_is_corrected(trees: Any, tmp_path: Path, surroundings: Around) -> None:
    """What torch guesses where nvcc on PATH is a script: the parent of the script's folder."""
    toolkit = trees.make_toolkit(tmp_path / "toolkit")
    wrapper_of(trees, toolkit, tmp_path / "usr local" / "bin" / "nvcc")
    assert find_nvcc(surroundings(CUDA_HOME=str(tmp_path / "usr local"))).home == toolkit


def test_symlink_needs_no_dry_run(trees: Any, tmp_path: Path) -> None:
    toolkit = trees.make_toolkit(tmp_path / "cuda-13.0")
    link = tmp_path / "bin" / "nvcc"
    link.parent.mkdir()
    link.symlink_to(toolkit / "bin" / "nvcc")
    assert nvcc_home(link) == toolkit


def test_script_that_is_no_nvcc(trees: Any, tmp_path: Path) -> None:
    broken = trees.script(tmp_path / "nvcc", "echo no toolkit here; exit 3")
    with pytest.raises(ToolchainError, match="no toolkit here"):
        nvcc_home(broken)


def test_wheel_nvcc_without_cuda_home(trees: Any, tmp_path: Path, surroundings: Around) -> None:
    root = trees.make_toolkit(tmp_path / "site packages" / "nvidia" / "cu13")
    found = find_nvcc(surroundings(tmp_path / "site packages"))
    assert (found.home, found.origin, found.version) == (root, "wheels", "13.0.88")


@pytest.mark.parametrize("missing", ["include/cuda_runtime_api.h", "include/crt/host_config.h", "nvvm/bin/cicc"])
def test_incomplete_toolkit_is_passed_over_and_said(
    trees: Any, tmp_path: Path, surroundings: Around, missing: str
) -> None:
    incomplete = trees.make_toolkit(tmp_path / "incomplete")
    (incomplete / missing).unlink()
    complete = trees.make_toolkit(tmp_path / "site" / "nvidia" / "cu13")
    rejected: list[str] = []
    found = find_nvcc(surroundings(tmp_path / "site", CUDA_HOME=str(incomplete)), rejected)
    assert found.home == complete
    assert len(rejected) == 1 and Path(missing).name in rejected[0]


def test_cuda_home_that_does_not_exist_is_passed_over(trees: Any, tmp_path: Path, surroundings: Around) -> None:
    complete = trees.make_toolkit(tmp_path / "site" / "nvidia" / "cu13")
    assert find_nvcc(surroundings(tmp_path / "site", CUDA_HOME=str(tmp_path / "gone"))).home == complete


def test_release_that_fits_its_headers_is_preferred(trees: Any, tmp_path: Path, surroundings: Around) -> None:
    mixed = trees.make_toolkit(tmp_path / "site" / "nvidia" / "cu13", "13.0", "13.2.51")
    fitting = trees.make_toolkit(tmp_path / "opt" / "cuda-13.0")
    around = surroundings(tmp_path / "site", system_roots=(str(tmp_path / "opt" / "cuda-*"),))
    assert find_nvcc(around).home == fitting
    (fitting / "nvvm" / "bin" / "cicc").unlink()
    assert find_nvcc(around).home == mixed


def test_variable_is_used_or_named(trees: Any, tmp_path: Path, surroundings: Around) -> None:
    toolkit = trees.make_toolkit(tmp_path / "mine")
    trees.make_toolkit(tmp_path / "site" / "nvidia" / "cu13")
    nvcc = toolkit / "bin" / "nvcc"
    assert find_nvcc(surroundings(tmp_path / "site", ATTNSMITH_NVCC=str(nvcc))).origin == "ATTNSMITH_NVCC"
    with pytest.raises(ToolchainError, match="no executable file"):
        find_nvcc(surroundings(tmp_path / "site", ATTNSMITH_NVCC=str(tmp_path / "typo")))


def test_no_nvcc_says_what_works_without(tmp_path: Path, surroundings: Around) -> None:
    with pytest.raises(ToolchainError, match="--jit, which needs no nvcc"):
        find_nvcc(surroundings(tmp_path))
