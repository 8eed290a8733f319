# SPDX-License-Identifier: Apache-2.0
"""Places that may hold parts of a CUDA toolkit on this machine, and the versions that headers declare.

Wheels of both layouts, toolkits, whatever is named by CUDA_HOME. Not responsible for choosing (toolchain.py).
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

SYSTEM_ROOTS: tuple[str, ...] = ("/usr/local/cuda", "/usr/local/cuda-*", "/opt/cuda")
"""Glob patterns of toolkit roots that are tried last."""

_TARGET_DIRS = ("targets/x86_64-linux", "targets/sbsa-linux")


@dataclass(frozen=True, kw_only=True)
class CudaRoot:
    """One place that may hold parts of a CUDA toolkit."""

    origin: str
    """"CUDA_HOME", "wheels", "PATH", "system" or the variable that named it."""
    path: Path
    """Its root folder."""
    lib_dirs: tuple[Path, ...]
    """Folders that may hold libnvrtc."""
    include_dirs: tuple[Path, ...]
    """Folders that may hold cuda_runtime_api.h."""
    cccl_dirs: tuple[Path, ...]
    """Folders that may hold cuda/std."""
    bin_dirs: tuple[Path, ...]
    """Folders that may hold nvcc and cuobjdump."""


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """What discovery looks at; tests pass their own."""

    env: Mapping[str, str]
    """Environment variables."""
    site_dirs: tuple[Path, ...]
    """Folders that packages are installed in."""
    system_roots: tuple[str, ...] = SYSTEM_ROOTS
    """Glob patterns of toolkits."""

    @staticmethod
    def of_this_process() -> Surroundings:
        """The real ones."""
        site_dirs = dict.fromkeys(Path(entry) for entry in sys.path if entry and Path(entry).is_dir())
        return Surroundings(env=os.environ, site_dirs=tuple(site_dirs))


def _existing(paths: Iterable[Path]) -> tuple[Path, ...]:
    return tuple(path for path in paths if path.is_dir())


def toolkit_root(path: Path, origin: str) -> CudaRoot:
    """A toolkit, or a wheel folder that is laid out like one (nvidia/cu13)."""
    bases = (path, *(path / target for target in _TARGET_DIRS))
    include_dirs = _existing(base / "include" for base in bases)
    return CudaRoot(
        origin=origin,
        path=path,
        lib_dirs=_existing(base / lib for base in bases for lib in ("lib64", "lib")),
        include_dirs=include_dirs,
        cccl_dirs=(*_existing(include / "cccl" for include in include_dirs), *include_dirs),
        bin_dirs=_existing([path / "bin"]),
    )


def wheel_roots(site_dirs: Iterable[Path]) -> Iterator[CudaRoot]:
    """Of every installation folder: nvidia/cu13 style first, newest first, then one folder per component (CUDA 12)."""
    for site in site_dirs:
        nvidia = site / "nvidia"
        for folder in sorted(nvidia.glob("cu[0-9][0-9]"), reverse=True):
            yield toolkit_root(folder, "wheels")
        if (nvidia / "cuda_nvrtc").is_dir() or (nvidia / "cuda_runtime").is_dir():
            yield CudaRoot(
                origin="wheels",
                path=nvidia,
                lib_dirs=_existing([nvidia / "cuda_nvrtc" / "lib"]),
                include_dirs=_existing([nvidia / "cuda_runtime" / "include"]),
                cccl_dirs=_existing([nvidia / "cuda_cccl" / "include"]),
                bin_dirs=_existing([nvidia / "cuda_nvcc" / "bin"]),
            )


def named_roots(around: Surroundings) -> Iterator[CudaRoot]:
    """What CUDA_HOME and CUDA_PATH name."""
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        value = around.env.get(variable)
        if value:
            yield toolkit_root(Path(value), variable)


def system_roots(around: Surroundings) -> Iterator[CudaRoot]:
    """Toolkits in the usual places, newest first."""
    for pattern in around.system_roots:
        anchor = Path(pattern)
        for path in sorted(anchor.parent.glob(anchor.name), reverse=True):
            yield toolkit_root(path, "system")


def all_roots(around: Surroundings) -> tuple[CudaRoot, ...]:
    """Wheels first: torch's own NVRTC and headers always fit each other, a leftover CUDA_HOME often does not."""
    return (*wheel_roots(around.site_dirs), *named_roots(around), *system_roots(around))


# Versions


def _defined(header: Path, macro: str) -> int | None:
    """The integer value of `#define macro value` near the top of a header; None where there is none."""
    try:
        with header.open(encoding="utf-8", errors="replace") as stream:
            match = re.search(rf"#\s*define\s+{macro}\s+(\d+)", stream.read(65536))
    except OSError:
        return None
    return int(match.group(1)) if match else None


def cuda_version(include: Path) -> str | None:
    """For example "13.0"; None where the folder holds no CUDA headers."""
    version = _defined(include / "cuda_runtime_api.h", "CUDART_VERSION")
    return None if version is None else f"{version // 1000}.{version % 1000 // 10}"


def cccl_version(include: Path) -> str | None:
    """For example "3.0.1"; None where the folder holds no libcu++."""
    for header in ("cuda/std/__cccl/version.h", "cuda/std/detail/libcxx/include/__cccl/version.h", "cuda/version"):
        version = _defined(include / header, "CCCL_VERSION")
        if version is not None:
            return f"{version // 1000000}.{version // 1000 % 1000}.{version % 1000}"
    return "unknown" if (include / "cuda" / "std").is_dir() else None


def cutlass_version(include: Path) -> str | None:
    """For example "4.2.0"; None where the folder holds no CUTLASS with CuTe."""
    header = include / "cutlass" / "version.h"
    parts = [_defined(header, f"CUTLASS_{part}") for part in ("MAJOR", "MINOR", "PATCH")]
    if parts[0] is None or not (include / "cute" / "tensor.hpp").is_file():
        return None
    return ".".join(str(part) for part in parts)
