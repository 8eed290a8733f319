# SPDX-License-Identifier: Apache-2.0
"""Finds the nvcc that AOT builds use, with the toolkit that it really compiles with, and its release.

An nvcc on PATH may be a script that execs another one: the script's folder says nothing, so it is asked. Not
responsible for running it on a source (compile/extension.py).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from attnsmith.codegen.cuda_roots import (
    Surroundings,
    cuda_version,
    named_roots,
    system_roots,
    toolkit_root,
    wheel_roots,
)
from attnsmith.codegen.errors import ToolchainError


@dataclass(frozen=True, kw_only=True)
class Nvcc:
    """The ahead-of-time compiler."""

    path: Path
    """The real nvcc, not a wrapper of it."""
    home: Path
    """Its toolkit's root: what CUDA_HOME must be."""
    version: str
    """Its release, for example 13.0.88."""
    cuda_version: str
    """Of the headers beside it, for example 13.0."""
    origin: str
    """Where it was found."""

    @property
    def fits_headers(self) -> bool:
        """True where compiler and headers are of one release, major.minor."""
        return self.version.split(".")[:2] == self.cuda_version.split(".")[:2]


def nvcc_home(nvcc: Path) -> Path:
    """The root of the toolkit that an nvcc, or a wrapper script of one, compiles with. Raises ToolchainError.

    A real nvcc has nvcc.profile beside it. Anything else (a script that execs one, ccache) is asked: its dry run prints
    TOP, the root that it computes paths from, whatever the script's own folder is.
    """
    real = nvcc.resolve()
    if (real.parent / "nvcc.profile").is_file():
        return real.parent.parent
    report = _output(nvcc, "--dryrun", "-E", "-x", "cu", os.devnull)
    for line in report.splitlines():
        match = re.match(r"#\$ TOP=(.+)$", line)
        if match:
            return Path(match.group(1).strip()).resolve()
    raise ToolchainError(
        asked=f"find the toolkit of {nvcc}",
        got=report.strip()[-300:] or "no output",
        allowed="an nvcc whose --dryrun prints TOP=",
        do="Set ATTNSMITH_NVCC to the real nvcc, or unset it.",
    )


def _nvcc_candidates(around: Surroundings) -> Iterator[tuple[Path, str]]:
    named = around.env.get("ATTNSMITH_NVCC")
    if named:
        yield Path(named), "ATTNSMITH_NVCC"
        return
    for root in (*named_roots(around), *wheel_roots(around.site_dirs)):
        yield from ((folder / "nvcc", root.origin) for folder in root.bin_dirs)
    on_path = shutil.which("nvcc", path=around.env.get("PATH", ""))
    if on_path:
        yield Path(on_path), "PATH"
    for root in system_roots(around):
        yield from ((folder / "nvcc", root.origin) for folder in root.bin_dirs)


def _nvcc_from(candidate: Path, origin: str) -> Nvcc:
    """Checks that what nvcc needs is beside it: half a toolkit is common where wheels were installed one by one."""
    if not (candidate.is_file() and os.access(candidate, os.X_OK)):
        raise _bad_nvcc(candidate, "no executable file")
    home = nvcc_home(candidate)
    include_dirs = toolkit_root(home, origin).include_dirs
    version = next((found for include in include_dirs if (found := cuda_version(include))), None)
    if version is None:
        raise _bad_nvcc(candidate, f"{home} without cuda_runtime_api.h")
    if not any((include / "crt" / "host_config.h").is_file() for include in include_dirs):
        raise _bad_nvcc(candidate, f"{home} without crt/host_config.h")
    if not (home / "nvvm" / "bin" / "cicc").is_file():
        raise _bad_nvcc(candidate, f"{home} without nvvm/bin/cicc")
    path = home / "bin" / "nvcc" if (home / "bin" / "nvcc").is_file() else candidate
    return Nvcc(path=path, home=home, version=_release(path), cuda_version=version, origin=origin)


def _release(nvcc: Path) -> str:
    match = re.search(r"\bV(\d+\.\d+\.\d+)", _output(nvcc, "--version"))
    if match is None:
        raise _bad_nvcc(nvcc, "no release in the output of --version")
    return match.group(1)


def _output(program: Path, *arguments: str) -> str:
    """stdout and stderr together, or why there is none."""
    try:
        run = subprocess.run(
            [str(program), *arguments], capture_output=True, text=True, errors="replace", timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return run.stdout + run.stderr


def _bad_nvcc(candidate: Path, got: str) -> ToolchainError:
    return ToolchainError(
        asked=f"use {candidate}",
        got=got,
        allowed="nvcc with its headers and cicc",
        do="Run `pip install attnsmith[toolkit]`, or set ATTNSMITH_NVCC to the nvcc of a complete toolkit.",
    )


def find_nvcc(around: Surroundings | None = None, rejected: list[str] | None = None) -> Nvcc:
    """The first complete nvcc whose headers are of its own release, else the first complete one.

    `rejected` collects why candidates were passed over. Raises ToolchainError.
    """
    around = around or Surroundings.of_this_process()
    reasons = [] if rejected is None else rejected
    second_choice: Nvcc | None = None
    for candidate, origin in _nvcc_candidates(around):
        if origin not in ("ATTNSMITH_NVCC", "CUDA_HOME", "CUDA_PATH") and not candidate.is_file():
            continue
        try:
            found = _nvcc_from(candidate, origin)
        except ToolchainError as error:
            if origin == "ATTNSMITH_NVCC":
                raise
            reasons.append(f"{origin}: {error}")
            continue
        if found.fits_headers or origin == "ATTNSMITH_NVCC":
            return found
        reasons.append(f"{origin}: {found.path} is {found.version}, its headers are {found.cuda_version}")
        second_choice = second_choice or found
    if second_choice is not None:
        return second_choice
    raise ToolchainError(
        asked="find nvcc",
        got="; ".join(reasons) or "none in CUDA_HOME, the installed wheels, PATH or /usr/local/cuda*",
        allowed="nvcc 12.8 or newer with its headers",
        do="Run `pip install attnsmith[toolkit]`, set ATTNSMITH_NVCC, or build with --jit, which needs no nvcc.",
    )
