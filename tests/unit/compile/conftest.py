# SPDX-License-Identifier: Apache-2.0
"""Fake toolkits and a toolchain that compiles nothing, for tests that need no compiler."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from attnsmith.codegen.cuda_roots import Surroundings
from attnsmith.codegen.toolchain import Headers, Nvrtc, Toolchain


def write(path: Path, text: str = "", mode: int = 0o644) -> Path:
    """A file, with its folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return path


def script(path: Path, *lines: str) -> Path:
    """An executable shell script."""
    return write(path, "\n".join(["#!/bin/sh", *lines, ""]), 0o755)


def make_headers(include: Path, version: str = "13.0") -> None:
    """CUDA headers of `version` with crt and libcu++."""
    major, minor = version.split(".")
    write(include / "cuda_runtime_api.h", f"#define CUDART_VERSION  {int(major) * 1000 + int(minor) * 10}\n")
    write(include / "crt" / "host_config.h")
    write(include / "cccl" / "cuda" / "std" / "__cccl" / "version.h", "#define CCCL_VERSION 3000001\n")


def make_toolkit(root: Path, version: str = "13.0", release: str = "13.0.88") -> Path:
    """A complete fake toolkit whose nvcc answers --version; returns its root."""
    make_headers(root / "include", version)
    script(root / "bin" / "nvcc", f"echo 'Cuda compilation tools, release {version}, V{release}'")
    write(root / "bin" / "nvcc.profile", "TOP = $(_HERE_)/..\n")
    script(root / "nvvm" / "bin" / "cicc")
    return root


def make_nvrtc(lib: Path, version: str = "13.0") -> None:
    """Fake NVRTC libraries, with the .alt ones that must not be chosen."""
    major = version.split(".")[0]
    for name in (f"libnvrtc.so.{major}", f"libnvrtc-builtins.so.{version}"):
        write(lib / name)
        write(lib / name.replace(".so", ".alt.so"))


def make_site(site: Path) -> Path:
    """An installation folder like the one of `pip install attnsmith`."""
    make_nvrtc(site / "nvidia" / "cu13" / "lib")
    make_headers(site / "nvidia" / "cu13" / "include")
    (site / "nvidia_cuda_nvrtc-13.0.88.dist-info").mkdir(parents=True)
    make_cutlass(site)
    return site


def make_cutlass(site: Path) -> Path:
    """Fake CUTLASS headers as the nvidia-cutlass package has them."""
    include = site / "cutlass_library" / "source" / "include"
    write(include / "cute" / "tensor.hpp")
    defines = (("MAJOR", 4), ("MINOR", 2), ("PATCH", 0))
    write(include / "cutlass" / "version.h", "".join(f"#define CUTLASS_{name} {value}\n" for name, value in defines))
    return include


@pytest.fixture
def surroundings(tmp_path: Path) -> Callable[..., Surroundings]:
    """`surroundings(site, CUDA_HOME=...)`: nothing but what is passed, and /bin for scripts."""

    def make(*site_dirs: Path, system_roots: tuple[str, ...] = (), **env: str) -> Surroundings:
        return Surroundings(env={"PATH": "", **env}, site_dirs=site_dirs, system_roots=system_roots)

    return make


@pytest.fixture
def fake_toolchain(tmp_path: Path) -> Toolchain:
    """Versions and one header of ours, and no compiler behind them."""
    include = tmp_path / "our include"
    write(include / "attnsmith" / "params.hpp", "struct FwdParams {};\n")
    foreign = Headers(path=tmp_path / "foreign", version="13.0")
    return Toolchain(
        nvrtc=Nvrtc(library=tmp_path / "libnvrtc.so.13", builtins=None, version="13.0.88", origin="wheels"),
        cuda=foreign,
        cccl=Headers(path=tmp_path / "cccl", version="3.0.1"),
        cutlass=Headers(path=tmp_path / "cutlass", version="4.2.0"),
        attnsmith_include=include,
    )


@pytest.fixture
def trees() -> SimpleNamespace:
    """The functions above that make fake trees."""
    return SimpleNamespace(
        write=write,
        script=script,
        make_headers=make_headers,
        make_toolkit=make_toolkit,
        make_nvrtc=make_nvrtc,
        make_site=make_site,
        make_cutlass=make_cutlass,
    )
