# SPDX-License-Identifier: Apache-2.0
"""Discovery of NVRTC, headers and programs on fake trees: layouts, variables, spaces, and what is missing."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from attnsmith.codegen.cuda_roots import Surroundings, cccl_version, cuda_version, cutlass_version
from attnsmith.codegen.errors import ToolchainError
from attnsmith.codegen.toolchain import find_disassembler, find_host_compiler, find_nvrtc, find_toolchain

Around = Callable[..., Surroundings]


def test_wheels_alone_are_enough(trees: Any, tmp_path: Path, surroundings: Around) -> None:
    site = trees.make_site(tmp_path / "site packages")
    found = find_toolchain(surroundings(site))
    assert found.nvrtc.library == site / "nvidia/cu13/lib/libnvrtc.so.13"
    assert found.nvrtc.builtins == site / "nvidia/cu13/lib/libnvrtc-builtins.so.13.0"
    assert found.identity() == {"nvrtc": "13.0.88", "cuda": "13.0", "cccl": "3.0.1", "cutlass": "4.2.0"}
    assert all(folder.is_dir() for folder in found.include_dirs())


def test_one_folder_per_component_as_in_cuda_12_wheels(trees: Any, tmp_path: Path, surroundings: Around) -> None:
    site = tmp_path / "site"
    trees.make_nvrtc(site / "nvidia" / "cuda_nvrtc" / "lib", "12.8")
    trees.make_headers(site / "nvidia" / "cuda_runtime" / "include", "12.8")
    trees.write(site / "nvidia/cuda_cccl/include/cuda/std/__cccl/version.h", "#define CCCL_VERSION 2007000\n")
    trees.make_cutlass(site)
    found = find_toolchain(surroundings(site))
    assert found.nvrtc.version == "12.8"
    assert found.cuda.version == "12.8"


def test_newest_wheel_wins(trees: Any, tmp_path: Path, surroundings: Around) -> None:
    site = trees.make_site(tmp_path)
    trees.make_nvrtc(site / "nvidia" / "cu12" / "lib", "12.9")
    assert find_nvrtc(surroundings(site)).library.parent.parent.name == "cu13"


def test_a_leftover_cuda_home_does_not_replace_the_wheels(trees: Any, tmp_path: Path, surroundings: Around) -> None:
    site = trees.make_site(tmp_path / "site")
    old = trees.make_toolkit(tmp_path / "cuda-11.8", "11.8", "11.8.89")
    trees.make_nvrtc(old / "lib64", "11.8")
    found = find_toolchain(surroundings(site, CUDA_HOME=str(old)))
    assert found.nvrtc.origin == "wheels"
    assert found.cuda.version == "13.0"


def test_headers_of_the_compilers_release_are_preferred(trees: Any, tmp_path: Path, surroundings: Around) -> None:
    site = trees.make_site(tmp_path / "site")
    (site / "nvidia_cuda_nvrtc-13.0.88.dist-info").rename(site / "nvidia_cuda_nvrtc-13.1.5.dist-info")
    newer = trees.make_toolkit(tmp_path / "cuda-13.1", "13.1", "13.1.5")
    found = find_toolchain(surroundings(site, CUDA_HOME=str(newer)))
    assert (found.nvrtc.version, found.cuda.version) == ("13.1.5", "13.1")
    assert found.cccl.path == newer / "include" / "cccl"


@pytest.mark.parametrize("layout", ["lib64", "targets/x86_64-linux/lib"])
def test_toolkit_without_wheels(trees: Any, tmp_path: Path, surroundings: Around, layout: str) -> None:
    toolkit = trees.make_toolkit(tmp_path / "opt" / "cuda-13.0")
    trees.make_nvrtc(toolkit / layout)
    trees.make_cutlass(tmp_path / "site")
    found = find_toolchain(surroundings(tmp_path / "site", system_roots=(str(tmp_path / "opt" / "cuda-*"),)))
    assert found.nvrtc.origin == "system"
    assert found.nvrtc.library.parent == toolkit / layout


def test_toolkit_library_version_is_the_one_of_the_file_behind_the_symlink(
    trees: Any, tmp_path: Path, surroundings: Around
) -> None:
    lib = tmp_path / "lib64"
    trees.write(lib / "libnvrtc.so.13.0.88")
    (lib / "libnvrtc.so.13").symlink_to("libnvrtc.so.13.0.88")
    (lib / "libnvrtc.so").symlink_to("libnvrtc.so.13")
    found = find_nvrtc(surroundings(ATTNSMITH_NVRTC=str(lib)))
    assert (found.library.name, found.version, found.builtins) == ("libnvrtc.so.13", "13.0.88", None)


@pytest.mark.parametrize("what", ["folder", "file"])
def test_nvrtc_variable_overrides(trees: Any, tmp_path: Path, surroundings: Around, what: str) -> None:
    site = trees.make_site(tmp_path / "site")
    trees.make_nvrtc(tmp_path / "mine", "13.2")
    value = tmp_path / "mine" if what == "folder" else tmp_path / "mine" / "libnvrtc.so.13"
    found = find_nvrtc(surroundings(site, ATTNSMITH_NVRTC=str(value)))
    assert (found.origin, found.version) == ("ATTNSMITH_NVRTC", "13.2")


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("ATTNSMITH_NVRTC", "/nowhere/libnvrtc.so"),
        ("ATTNSMITH_CUDA_INCLUDE", "/nowhere"),
        ("ATTNSMITH_CCCL_INCLUDE", "/nowhere"),
        ("ATTNSMITH_CUTLASS_INCLUDE", "/nowhere"),
    ],
)
def test_a_wrong_variable_is_named_not_ignored(
    trees: Any, tmp_path: Path, surroundings: Around, variable: str, value: str
) -> None:
    site = trees.make_site(tmp_path)
    with pytest.raises(ToolchainError, match=f"{variable}: got {value}"):
        find_toolchain(surroundings(site, **{variable: value}))


@pytest.mark.parametrize(
    ("missing", "package"),
    [
        ("nvidia/cu13/lib/libnvrtc.so.13", "nvidia-cuda-nvrtc"),
        ("nvidia/cu13/include/cuda_runtime_api.h", "nvidia-cuda-runtime"),
        ("nvidia/cu13/include/cccl/cuda/std/__cccl/version.h", "nvidia-cuda-cccl"),
        ("cutlass_library/source/include/cute/tensor.hpp", "nvidia-cutlass"),
    ],
)
def test_each_missing_part_names_its_package(
    trees: Any, tmp_path: Path, surroundings: Around, missing: str, package: str
) -> None:
    site = trees.make_site(tmp_path)
    (site / missing).unlink()
    for folder in (site / missing).parents:
        if folder.name == "std":
            for child in sorted(folder.rglob("*"), reverse=True):
                child.rmdir()
            folder.rmdir()
    with pytest.raises(ToolchainError, match=f"pip install {package}`"):
        find_toolchain(surroundings(site))


def test_versions_are_read_from_headers(trees: Any, tmp_path: Path) -> None:
    trees.make_headers(tmp_path, "12.8")
    assert cuda_version(tmp_path) == "12.8"
    assert cccl_version(tmp_path / "cccl") == "3.0.1"
    assert cutlass_version(trees.make_cutlass(tmp_path)) == "4.2.0"
    empty = tmp_path / "empty"
    assert (cuda_version(empty), cccl_version(empty), cutlass_version(empty)) == (None, None, None)


def test_cuobjdump_of_triton_is_found_without_importing_it(trees: Any, tmp_path: Path, surroundings: Around) -> None:
    tool = trees.script(tmp_path / "triton" / "backends" / "nvidia" / "bin" / "cuobjdump")
    trees.write(tmp_path / "triton" / "__init__.py", "raise AssertionError('imported')")
    assert find_disassembler("cuobjdump", surroundings(tmp_path)) == tool


def test_cuobjdump_of_a_toolkit_comes_first(trees: Any, tmp_path: Path, surroundings: Around) -> None:
    trees.script(tmp_path / "triton" / "backends" / "nvidia" / "bin" / "cuobjdump")
    tool = trees.script(tmp_path / "cuda" / "bin" / "cuobjdump")
    assert find_disassembler("cuobjdump", surroundings(tmp_path, CUDA_HOME=str(tmp_path / "cuda"))) == tool


def test_no_cuobjdump(tmp_path: Path, surroundings: Around) -> None:
    with pytest.raises(ToolchainError, match="ATTNSMITH_CUOBJDUMP"):
        find_disassembler("cuobjdump", surroundings(tmp_path))


def test_host_compiler_from_cxx_then_path(trees: Any, tmp_path: Path, surroundings: Around) -> None:
    compiler = trees.script(tmp_path / "bin" / "g++")
    mine = trees.script(tmp_path / "bin" / "my-g++")
    path = os.fspath(tmp_path / "bin")
    assert find_host_compiler(surroundings(PATH=path)) == compiler
    assert find_host_compiler(surroundings(PATH=path, CXX="my-g++ -m64")) == mine
    with pytest.raises(ToolchainError, match="Install g"):
        find_host_compiler(surroundings(PATH=os.fspath(tmp_path / "none")))
