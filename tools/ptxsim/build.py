# SPDX-License-Identifier: Apache-2.0
"""Compiles the simulator's C++ core with the machine's own g++ and keeps the library in the user's cache.

Responsible for the cache key, the lock between processes, the atomic publication and a readable failure. Not
responsible for loading the library: binding.py does.
"""

from __future__ import annotations

import atexit
import concurrent.futures
import functools
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
import time
import uuid
from pathlib import Path

import filelock
import platformdirs
from attnsmith.codegen.errors import CompileError

_LOG = logging.getLogger(__name__)

SOURCE_DIR = Path(__file__).parent / "csrc"
LIBRARY_NAME = "libptxsim.so"
# -ffp-contract=off: the core decides itself where a multiply and an add are fused, because PTX does.
FLAGS = ("-O3", "-march=native", "-std=c++17", "-fPIC", "-ffp-contract=off", "-pthread")
MAX_JOBS = 2  # a translation unit of the core needs about 1 GB at -O3


def library_path() -> Path:
    """Path of the compiled core; compiles it first if this machine has not yet.

    Raises:
        CompileError: g++ is missing, or the core does not compile; `log` holds the compiler's output.
    """
    return _library_path(os.environ.get("CXX", "g++"), cache_root())


def cache_root() -> Path:
    """Folder that holds one subfolder per digest: $ATTNSMITH_CACHE_DIR or the user's cache, then ptxsim."""
    base = os.environ.get("ATTNSMITH_CACHE_DIR") or platformdirs.user_cache_dir("attnsmith")
    return Path(base).expanduser() / "ptxsim"


@functools.lru_cache(maxsize=8)
def _library_path(compiler: str, root: Path) -> Path:
    key = digest(compiler)
    library = root / key / LIBRARY_NAME
    if is_intact(library):
        return library
    built: Path | None = None
    try:
        root.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(root / f"{key}.lock"):
            if not is_intact(library):
                built = _build(compiler)
                _publish(built.parent, root, key)
        return library
    except OSError as error:
        _LOG.warning("The cache %s cannot be used (%s); the simulator is built for this process only.", root, error)
        return built or _build(compiler)


def digest(compiler: str = "g++") -> str:
    """Cache key: every source byte, the compiler's identity, the flags and the processor's features."""
    sha = hashlib.sha256()
    for path in sorted(SOURCE_DIR.iterdir()):
        if path.suffix in {".cpp", ".h", ".hpp", ".inc"}:
            sha.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    for text in (compiler, compiler_version(compiler), *FLAGS, cpu_features()):
        sha.update(text.encode() + b"\0")
    return sha.hexdigest()[:32]


def compiler_version(compiler: str) -> str:
    """First lines that identify the compiler.

    Raises:
        CompileError: the compiler cannot be run.
    """
    try:
        run = subprocess.run([*compiler.split(), "--version"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise CompileError(
            asked="compile the PTX simulator",
            got=f"no usable C++ compiler ({compiler}: {error})",
            allowed="g++ 9 or newer (or another compiler of C++17 named by the environment variable CXX)",
            do="Install one: `apt-get install g++`, `dnf install gcc-c++` or `conda install gxx`.",
        ) from error
    return run.stdout


def cpu_features() -> str:
    """What -march=native depends on: the machine and, where the kernel tells, its feature flags."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    features = next((line for line in lines if line.lower().startswith(("flags", "features"))), "")
    return f"{platform.machine()} {platform.processor()} {' '.join(sorted(features.split()))}"


def is_intact(library: Path) -> bool:
    """True if the library exists and its content has the checksum noted when it was published."""
    try:
        noted = library.with_suffix(".sha256").read_text()
        return hashlib.sha256(library.read_bytes()).hexdigest() == noted
    except OSError:
        return False


def _publish(built: Path, root: Path, key: str) -> None:
    """Copies the folder `built` beside its place and renames it: a full or read-only cache costs no second build."""
    staging = root / f".{key}.{uuid.uuid4().hex}"
    try:
        shutil.copytree(built, staging)
        entry = root / key
        if entry.exists():  # damaged: an intact one would have been used
            entry.rename(root / f".{key}.{uuid.uuid4().hex}.damaged")
        staging.rename(entry)
    finally:
        for leftover in root.glob(f".{key}.*"):
            shutil.rmtree(leftover, ignore_errors=True)


def _build(compiler: str) -> Path:
    """Compiles into a folder that lasts as long as this process."""
    folder = Path(tempfile.mkdtemp(prefix="attnsmith-ptxsim-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    _compile(compiler, folder)
    return folder / LIBRARY_NAME


def _compile(compiler: str, folder: Path) -> None:
    """Compiles each source on its own, links, and notes the library's checksum; objects do not stay."""
    sources = sorted(SOURCE_DIR.glob("*.cpp"))
    if not sources:
        raise CompileError(
            asked="compile the PTX simulator",
            got="no sources in the installed package",
            allowed="the csrc folder of attnsmith.tools.ptxsim",
            do="Reinstall attnsmith: this installation is incomplete.",
        )
    start = time.perf_counter()
    _LOG.info("Building the PTX simulator: %d files with %s (once per machine).", len(sources), compiler)
    with tempfile.TemporaryDirectory(prefix="attnsmith-ptxsim-obj-") as objects:
        jobs = min(MAX_JOBS, os.cpu_count() or 1)
        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            paths = list(pool.map(lambda source: _compile_one(compiler, source, Path(objects)), sources))
        library = folder / LIBRARY_NAME
        _run([*compiler.split(), "-shared", "-pthread", *map(str, paths), "-o", str(library)])
    library.with_suffix(".sha256").write_text(hashlib.sha256(library.read_bytes()).hexdigest())
    _LOG.info("Built the PTX simulator in %.1f s.", time.perf_counter() - start)


def _compile_one(compiler: str, source: Path, objects: Path) -> Path:
    start = time.perf_counter()
    target = objects / f"{source.stem}.o"
    _run([*compiler.split(), *FLAGS, "-c", str(source), "-o", str(target)])
    _LOG.info("  %s: %.1f s", source.name, time.perf_counter() - start)
    return target


def _run(command: list[str]) -> None:
    run = subprocess.run(command, capture_output=True, text=True)
    if run.returncode == 0:
        return
    log = f"$ {' '.join(command)}\n{run.stdout}{run.stderr}"
    first = next((line for line in run.stderr.splitlines() if "error" in line.lower()), f"exit status {run.returncode}")
    raise CompileError(
        asked="compile the PTX simulator",
        got=first.strip(),
        allowed="a C++17 compiler such as g++ 9 or newer",
        do="Update the compiler or name another one in the environment variable CXX; the exception's log has the rest.",
        log=log,
    )
