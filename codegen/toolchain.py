# SPDX-License-Identifier: Apache-2.0
"""Finds the compilers, libraries and headers that kernels are built with, and says which versions they have.

Looks at the environment, at the wheels of this Python installation and at installed toolkits; imports neither torch nor
triton, starts no process and writes nothing. Not responsible for nvcc (nvcc.py), for compiling (compile/) or for the
cache key (digest.py).

Environment variables, each optional and each naming something that must exist:

- ATTNSMITH_NVRTC: libnvrtc.so.* or the folder that holds it (default: wheels, then toolkits)
- ATTNSMITH_NVCC: nvcc, or a script that execs it (default: CUDA_HOME, wheels, PATH, /usr/local/cuda*)
- CUDA_HOME, CUDA_PATH: a toolkit's root; passed over, with a note in `attnsmith doctor`, where it is incomplete
- ATTNSMITH_CUDA_INCLUDE, ATTNSMITH_CCCL_INCLUDE, ATTNSMITH_CUTLASS_INCLUDE: header folders
- ATTNSMITH_CUOBJDUMP, ATTNSMITH_NVDISASM: disassemblers (default: toolkits, then Triton's package)
- CXX: host compiler of the AOT library and the launcher
"""

from __future__ import annotations

import functools
import os
import re
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from attnsmith.codegen.cuda_roots import (
    Surroundings,
    all_roots,
    cccl_version,
    cuda_version,
    cutlass_version,
)
from attnsmith.codegen.errors import ToolchainError


@dataclass(frozen=True, kw_only=True)
class Nvrtc:
    """The run-time compiler library."""

    library: Path
    """libnvrtc.so.*"""
    builtins: Path | None
    """libnvrtc-builtins.so.*, which NVRTC opens by its soname: it must be loaded first. None: on the loader's path."""
    version: str
    """For example 13.0.88, or 13.0 where the files do not say more."""
    origin: str
    """Where it was found."""


@dataclass(frozen=True, kw_only=True)
class Headers:
    """A folder of headers and its version."""

    path: Path
    """To pass with -I."""
    version: str
    """As its version header says."""


@dataclass(frozen=True, kw_only=True)
class Toolchain:
    """What NVRTC compilation needs; nvcc.py finds what only AOT builds want."""

    nvrtc: Nvrtc
    """Run-time compiler."""
    cuda: Headers
    """CUDA headers, of NVRTC's version where there is a choice."""
    cccl: Headers
    """libcu++ headers."""
    cutlass: Headers
    """CUTLASS and CuTe headers."""
    attnsmith_include: Path
    """Our own headers."""

    def include_dirs(self) -> tuple[Path, ...]:
        """In search order."""
        return (self.attnsmith_include, self.cutlass.path, self.cuda.path, self.cccl.path)

    def identity(self) -> dict[str, str]:
        """Versions that enter the cache key. Folders do not: the same versions elsewhere give the same kernel."""
        return {
            "nvrtc": self.nvrtc.version,
            "cuda": self.cuda.version,
            "cccl": self.cccl.version,
            "cutlass": self.cutlass.version,
        }


# NVRTC and headers


def _nvrtc_in(folder: Path, origin: str, site_dirs: Iterable[Path] = ()) -> Nvrtc | None:
    libraries = [path for path in sorted(folder.glob("libnvrtc.so*"), key=lambda p: len(p.name)) if _is_library(path)]
    if not libraries:
        return None
    # libnvrtc.so is only a development symlink; the soname is what torch has loaded already.
    library = next((path for path in libraries if path.name != "libnvrtc.so"), libraries[0])
    builtins = [path for path in sorted(folder.glob("libnvrtc-builtins.so.*")) if _is_library(path)]
    version = _nvrtc_version(library, builtins, site_dirs)
    return Nvrtc(library=library, builtins=builtins[0] if builtins else None, version=version, origin=origin)


def _is_library(path: Path) -> bool:
    return path.is_file() and ".alt." not in path.name


def _nvrtc_version(library: Path, builtins: Sequence[Path], site_dirs: Iterable[Path]) -> str:
    """From the wheel's metadata, else from the longest version in a file name: a lookup, not a load."""
    for site in site_dirs:
        if site in library.parents:
            for metadata in sorted(site.glob("nvidia_cuda_nvrtc*.dist-info")):
                return metadata.name.removesuffix(".dist-info").rsplit("-", 1)[1]
    names = [path.resolve().name for path in (*builtins, library)]
    found = [match.group(1) for name in names if (match := re.search(r"\.so\.([\d.]+)$", name))]
    return max(found, key=len, default="unknown")


def find_nvrtc(around: Surroundings | None = None) -> Nvrtc:
    """The NVRTC library. Raises ToolchainError."""
    around = around or Surroundings.of_this_process()
    named = around.env.get("ATTNSMITH_NVRTC")
    if named:
        folder = Path(named) if Path(named).is_dir() else Path(named).parent
        found = _nvrtc_in(folder, "ATTNSMITH_NVRTC")
        if found is None:
            raise _bad_variable("ATTNSMITH_NVRTC", named, "libnvrtc.so.* or the folder that holds it")
        return found
    for root in all_roots(around):
        for folder in root.lib_dirs:
            found = _nvrtc_in(folder, root.origin, around.site_dirs)
            if found is not None:
                return found
    raise ToolchainError(
        asked="find NVRTC",
        got="no libnvrtc.so.* in the installed wheels, CUDA_HOME or /usr/local/cuda*",
        allowed="NVRTC 12.8 or newer",
        do="Run `pip install nvidia-cuda-nvrtc`, or set ATTNSMITH_NVRTC to the library.",
    )


def _bad_variable(variable: str, value: str, allowed: str) -> ToolchainError:
    return ToolchainError(asked=f"use {variable}", got=value, allowed=allowed, do=f"Correct or unset {variable}.")


def _named_headers(around: Surroundings, variable: str, version: str | None, what: str) -> Headers | None:
    value = around.env.get(variable)
    if not value:
        return None
    if version is None:
        raise _bad_variable(variable, value, f"a folder with {what}")
    return Headers(path=Path(value), version=version)


def _variable_path(around: Surroundings, variable: str) -> Path:
    return Path(around.env.get(variable) or os.devnull)


def find_cuda_headers(around: Surroundings, nvrtc_version: str) -> Headers:
    """CUDA headers of NVRTC's major.minor if any, else of its major, else the first found. Raises ToolchainError."""
    variable = "ATTNSMITH_CUDA_INCLUDE"
    path = _variable_path(around, variable)
    named = _named_headers(around, variable, cuda_version(path), "cuda_runtime_api.h")
    if named:
        return named
    found = [
        Headers(path=include, version=version)
        for root in all_roots(around)
        for include in root.include_dirs
        if (version := cuda_version(include)) is not None
    ]
    wanted = nvrtc_version.split(".")
    for length in (2, 1, 0):
        for headers in found:
            if headers.version.split(".")[:length] == wanted[:length]:
                return headers
    raise ToolchainError(
        asked="find the CUDA headers",
        got="no cuda_runtime_api.h in the installed wheels, CUDA_HOME or /usr/local/cuda*",
        allowed=f"headers of CUDA {'.'.join(wanted[:2])}",
        do="Run `pip install nvidia-cuda-runtime`, or set ATTNSMITH_CUDA_INCLUDE.",
    )


def find_cccl_headers(around: Surroundings, cuda: Headers) -> Headers:
    """libcu++ beside the CUDA headers, else of the first root that has one. Raises ToolchainError."""
    variable = "ATTNSMITH_CCCL_INCLUDE"
    path = _variable_path(around, variable)
    named = _named_headers(around, variable, cccl_version(path), "cuda/std")
    if named:
        return named
    folders = [cuda.path / "cccl", cuda.path, *(folder for root in all_roots(around) for folder in root.cccl_dirs)]
    for folder in folders:
        version = cccl_version(folder)
        if version is not None:
            return Headers(path=folder, version=version)
    raise ToolchainError(
        asked="find the CCCL headers",
        got="no cuda/std in the installed wheels, CUDA_HOME or /usr/local/cuda*",
        allowed="CCCL 2.7 or newer",
        do="Run `pip install nvidia-cuda-cccl`, or set ATTNSMITH_CCCL_INCLUDE.",
    )


def find_cutlass_headers(around: Surroundings) -> Headers:
    """CUTLASS from the nvidia-cutlass package. Raises ToolchainError."""
    variable = "ATTNSMITH_CUTLASS_INCLUDE"
    path = _variable_path(around, variable)
    named = _named_headers(around, variable, cutlass_version(path), "cutlass/version.h and cute/tensor.hpp")
    if named:
        return named
    for site in around.site_dirs:
        folder = site / "cutlass_library" / "source" / "include"
        version = cutlass_version(folder)
        if version is not None:
            return Headers(path=folder, version=version)
    raise ToolchainError(
        asked="find the CUTLASS headers",
        got="no cutlass_library/source/include in the installed packages",
        allowed="CUTLASS 4.2 or newer",
        do="Run `pip install nvidia-cutlass`, or set ATTNSMITH_CUTLASS_INCLUDE.",
    )


def attnsmith_include() -> Path:
    """The folder of our own headers."""
    import attnsmith.templates

    return Path(attnsmith.templates.__path__[0]) / "include"


def find_toolchain(around: Surroundings | None = None) -> Toolchain:
    """NVRTC and headers, looked for anew. Raises ToolchainError that names the first missing part."""
    around = around or Surroundings.of_this_process()
    nvrtc = find_nvrtc(around)
    cuda = find_cuda_headers(around, nvrtc.version)
    return Toolchain(
        nvrtc=nvrtc,
        cuda=cuda,
        cccl=find_cccl_headers(around, cuda),
        cutlass=find_cutlass_headers(around),
        attnsmith_include=attnsmith_include(),
    )


@functools.lru_cache(maxsize=1)
def default_toolchain() -> Toolchain:
    """This process's toolchain, found once. Raises ToolchainError."""
    return find_toolchain()


# Other programs


def find_disassembler(name: str, around: Surroundings | None = None) -> Path:
    """`name` is "cuobjdump" or "nvdisasm". Raises ToolchainError."""
    around = around or Surroundings.of_this_process()
    variable = f"ATTNSMITH_{name.upper()}"
    named = around.env.get(variable)
    if named:
        if not os.access(named, os.X_OK):
            raise _bad_variable(variable, named, f"an executable {name}")
        return Path(named)
    on_path = shutil.which(name, path=around.env.get("PATH", ""))
    candidates: list[Path] = [folder / name for root in all_roots(around) for folder in root.bin_dirs]
    candidates += [Path(on_path)] if on_path else []
    candidates += [site / "triton" / "backends" / "nvidia" / "bin" / name for site in around.site_dirs]
    for candidate in candidates:
        if candidate.is_file() and os.access(candidate, os.X_OK):
            return candidate
    raise ToolchainError(
        asked=f"find {name}",
        got="none in the installed wheels, CUDA_HOME, PATH, /usr/local/cuda* or Triton's package",
        allowed="the one of a CUDA toolkit or of Triton",
        do=f"Run `pip install triton`, or set {variable}.",
    )


def find_host_compiler(around: Surroundings | None = None) -> Path:
    """The C++ compiler: CXX, else g++, c++ or clang++ on PATH. Raises ToolchainError."""
    around = around or Surroundings.of_this_process()
    names = [around.env["CXX"].split()[0]] if around.env.get("CXX", "").strip() else ["g++", "c++", "clang++"]
    for name in names:
        found = shutil.which(name, path=around.env.get("PATH", ""))
        if found:
            return Path(found)
    raise ToolchainError(
        asked="find a C++ compiler",
        got=f"no {' or '.join(names)} on PATH",
        allowed="g++ 9 or newer, or clang++",
        do="Install g++, or set CXX.",
    )
