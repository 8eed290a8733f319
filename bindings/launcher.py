# SPDX-License-Identifier: Apache-2.0
"""Builds the C++ launcher once per machine, keeps it in the cache, and loads it into this process on first use.

The build is a torch C++ extension without CUDA sources: it needs a host compiler, no nvcc and no CUDA toolkit. Not
responsible for what the launcher does (csrc/) or for what is in its kernel table (dispatch.py).
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

import torch
from attnsmith.capi import CApi
from attnsmith.codegen.build import held_lock
from attnsmith.codegen.cache import DirectoryCache, default_root
from attnsmith.codegen.compile.ninja import ninja_on_path
from attnsmith.codegen.dispatch import render_dispatch_header
from attnsmith.codegen.errors import CacheError, CompileError, ToolchainError
from attnsmith.codegen.toolchain import find_host_compiler
from attnsmith.progress import visible_progress

_LOG = logging.getLogger(__name__)

MIN_TORCH = (2, 11)
TARGET_VERSION = "0x020b000000000000"
"""The stable ABI of torch 2.11: what the launcher may call, whichever torch compiles it."""

NAME = "attnsmith_launcher"

_lock = threading.RLock()
_api: CApi | None = None


def loaded() -> CApi | None:
    """The launcher if this process has loaded it; never builds."""
    return _api


def load() -> CApi:
    """The launcher: built if need be (once per machine, well under a minute), loaded once per process.

    Raises:
        ToolchainError: no host C++ compiler, or a torch older than 2.11.
        CompileError: the compiler failed; `log` has its output.
    """
    global _api
    if _api is not None:
        return _api
    with _lock:
        if _api is None:
            import attnsmith.ops  # declares the ops that the library implements  # noqa: F401
            from attnsmith import dispatch

            _require_torch()
            api = CApi(_open_library())
            dispatch.attach(api)
            _api = api
    return _api


def _open_library() -> ctypes.CDLL:
    """The launcher's library from the cache, built first if it is not there or damaged; its ops are registered."""
    sources = _sources()
    digest = _digest(sources)
    cache = DirectoryCache(default_root() / "launcher")
    entry = cache.load(digest)
    if entry is None:
        with visible_progress(), held_lock(cache, digest):
            entry = cache.load(digest)
            if entry is None:
                return _build_and_publish(sources, digest, cache)
    path = str(entry.directory / f"{NAME}.so")
    torch.ops.load_library(path)  # type: ignore[no-untyped-call]
    return ctypes.CDLL(path)


def _require_torch() -> None:
    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    if version < MIN_TORCH:
        raise ToolchainError(
            asked="load the attnsmith launcher",
            got=f"torch {torch.__version__}",
            allowed="torch 2.11 or newer (its stable ABI)",
            do="Upgrade torch.",
        )


def _sources() -> dict[str, bytes]:
    """Every file of the build by its path below the work folder; nothing outside it but torch is included."""
    csrc = resources.files("attnsmith") / "csrc"
    files = {item.name: item.read_bytes() for item in csrc.iterdir() if item.name.endswith((".cpp", ".hpp", ".h"))}
    shared = resources.files("attnsmith.templates") / "include" / "attnsmith"
    headers = ("params.hpp", "sm90/params.hpp", "kernel_desc.hpp")
    files |= {f"attnsmith/{name}": (shared / name).read_bytes() for name in headers}
    files["ptxsim.h"] = (resources.files("attnsmith.tools.ptxsim") / "csrc" / "ptxsim.h").read_bytes()
    files["dispatch_table.inc"] = render_dispatch_header().encode()
    return files


def _digest(sources: dict[str, bytes]) -> str:
    sha = hashlib.sha256()
    for name, content in sorted(sources.items()):
        sha.update(f"{name}\0{len(content)}\0".encode() + content)
    facts = (torch.__version__, platform.machine(), platform.system(), os.environ.get("CXX", ""), TARGET_VERSION)
    sha.update("\0".join(facts).encode())
    return sha.hexdigest()


def _build_and_publish(sources: dict[str, bytes], digest: str, cache: DirectoryCache) -> ctypes.CDLL:
    """Builds and stores the library. A cache that cannot be used costs a warning, not the result."""
    compiler = _host_compiler()
    start = time.perf_counter()
    _LOG.info("building the launcher with %s (once per machine, about 10 s)", compiler)
    work = _work_folder(cache, digest)
    try:
        path = _build(sources, work, compiler)
        library = ctypes.CDLL(str(path))  # the one that torch loaded: opened before its file moves
        seconds = round(time.perf_counter() - start, 1)
        _LOG.info("built the launcher in %.1f s", seconds)
        manifest = {"torch": torch.__version__, "compiler": compiler, "seconds": seconds}
        cache.publish(digest, {f"{NAME}.so": path}, manifest)
    except CacheError as error:
        _LOG.warning("%s (the launcher is built again next time)", error)
    finally:
        shutil.rmtree(work, ignore_errors=True)
        with contextlib.suppress(OSError):
            work.parent.rmdir()  # the cache's folder for this build, if it is empty now; never /tmp
    return library


def _work_folder(cache: DirectoryCache, digest: str) -> Path:
    """A folder that no build has used: torch waits for ever for the lock file that a killed one leaves.

    On the cache's file system where that can be; elsewhere for a path with a `$`, which torch's ninja file mistakes.
    """
    parent: Path | None = None
    try:
        if "$" not in str(cache.folder):
            parent = cache.resumable_folder(digest)
    except CacheError as error:
        _LOG.warning("%s (the launcher is built for this process only)", error)
    return Path(tempfile.mkdtemp(prefix="attnsmith-launcher-", dir=parent))


def _host_compiler() -> str:
    """CXX with its arguments, else the compiler on PATH."""
    found = find_host_compiler()
    return os.environ.get("CXX", "").strip() or str(found)


def _one_word(compiler: str, folder: Path) -> str:
    """torch takes CXX for the name of one program: a command with arguments becomes a script in `folder`."""
    if len(compiler.split()) == 1:
        return compiler
    script = folder / "cxx"
    script.write_text(f'#!/bin/sh\nexec {compiler} "$@"\n')
    script.chmod(0o755)
    return str(script)


def _build(sources: dict[str, bytes], folder: Path, compiler: str) -> Path:
    """Compiles in `folder`; also loads the library, as torch does. Returns its path."""
    with _quiet("torch.utils.cpp_extension"):  # it warns that there is no CUDA runtime, which this build does not use
        from torch.utils import cpp_extension
    for name, content in sources.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    with _environment(CXX=_one_word(compiler, folder)), ninja_on_path():
        try:
            built: str = cpp_extension.load(
                NAME,
                [str(folder / name) for name in sorted(sources) if name.endswith(".cpp")],
                extra_cflags=["-O2", "-I.", f"-DTORCH_TARGET_VERSION={TARGET_VERSION}"],
                build_directory=str(folder),
                with_cuda=False,
                is_python_module=False,
            )
        except (RuntimeError, OSError, subprocess.SubprocessError) as error:
            raise _compile_error(error) from error
    return Path(built)


def _compile_error(error: Exception) -> CompileError:
    log = f"{error}\n{getattr(error, 'output', None) or ''}".strip()
    first = next((line.strip() for line in log.splitlines() if "error:" in line), log.splitlines()[0] if log else "?")
    return CompileError(
        asked="build the attnsmith launcher",
        got=first,
        allowed="a host compiler of C++17 that torch's headers accept",
        do="Name another compiler in CXX; the exception's log has the rest.",
        log=log,
    )


@contextlib.contextmanager
def _quiet(logger_name: str) -> Iterator[None]:
    """No warnings of one logger."""
    logger = logging.getLogger(logger_name)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


@contextlib.contextmanager
def _environment(**values: str) -> Iterator[None]:
    """os.environ with `values` for the length of a build."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
