# SPDX-License-Identifier: Apache-2.0
"""From a spec to a compiled kernel or library, through the cache. The only entry to compilation for everyone else.

A hit costs a render, a few hashes and a read: no compiler is loaded and no process started. Not responsible for how a
source is compiled (compile/), stored (cache.py) or chosen (dispatch.py).
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnsmith.codegen import rules
from attnsmith.codegen.cache import DirectoryCache, Entry, KernelCache
from attnsmith.codegen.compile import nvrtc
from attnsmith.codegen.digest import kernel_digest
from attnsmith.codegen.errors import CacheError, CompileError
from attnsmith.codegen.render import render
from attnsmith.codegen.spec import KernelSpec
from attnsmith.codegen.toolchain import Toolchain, default_toolchain

_LOG = logging.getLogger(__name__)

Progress = Callable[[str, int, int], None]
"""Called with a message, the number of finished steps and the number of all steps."""


@dataclass(frozen=True, kw_only=True)
class BuiltKernel:
    """A compiled kernel, in memory whether or not it could be stored."""

    spec: KernelSpec | None
    """What it was built from; None for a source that no spec rendered."""
    target: str
    """What it was compiled for."""
    name: str
    """Its symbol."""
    digest: str
    """Its cache key."""
    directory: Path | None
    """Its cache entry; None where the cache cannot be written."""
    cubin: bytes
    """Image for the GPU."""
    ptx: str
    """Text for the simulator."""
    log: str
    """Of the compilation, ptxas -v included."""
    seconds: float
    """CPU seconds of the compilation that made it, possibly in another process and long ago."""
    was_cached: bool
    """True where nothing was compiled now."""


def build_kernel(
    spec: KernelSpec, target: str, *, cache: KernelCache | None = None, progress: Progress | None = None
) -> BuiltKernel:
    """The kernel of `spec` for `target`, from the cache or compiled by NVRTC and stored.

    Raises SpecError (illegal), ToolchainError (no NVRTC or headers) or CompileError (with the log; the source is kept
    in the cache's failed folder). A cache that cannot be used costs a warning, not the result.
    """
    rules.check(spec, target)
    return build_source(render(spec), spec.name, target, spec=spec, cache=cache, progress=progress)


def build_source(
    source: str,
    name: str,
    target: str,
    *,
    spec: KernelSpec | None = None,
    extra_flags: Sequence[str] = (),
    cache: KernelCache | None = None,
    toolchain: Toolchain | None = None,
    progress: Progress | None = None,
    compile_source: Callable[..., nvrtc.CompiledKernel] = nvrtc.compile_source,
) -> BuiltKernel:
    """Like build_kernel, for any source whose entry is `name`; `compile_source` may be one that works elsewhere."""
    cache = cache or KernelCache()
    toolchain = toolchain or default_toolchain()
    job = _Job(source, name, target, spec, tuple(extra_flags), toolchain, compile_source)
    entry = cache.load(job.digest)
    if entry is None:
        with held_lock(cache.kernels, job.digest):
            entry = cache.load(job.digest)  # another process may have built it while this one waited
            if entry is None:
                return _compile_and_store(job, cache, progress)
    return _from_entry(job, entry)


def build_kernels(
    specs: Sequence[KernelSpec],
    target: str,
    *,
    jobs: int | None = None,
    cache: KernelCache | None = None,
    progress: Progress | None = None,
    on_built: Callable[[BuiltKernel], None] | None = None,
) -> list[BuiltKernel]:
    """`build_kernel` for each, `jobs` at a time (default: what cores and memory allow), in the order of `specs`.

    `progress` and `on_built` are called by worker threads. The first error stops what has not started and is raised.
    """
    from attnsmith.codegen.compile.jobs import NVRTC_BYTES, default_jobs
    from attnsmith.codegen.compile.worker import compile_source_apart

    jobs = jobs or default_jobs(len(specs), NVRTC_BYTES)
    compile_source = compile_source_apart if jobs > 1 else nvrtc.compile_source
    num_done = itertools.count(1)
    report = progress or _log_progress

    def build_one(spec: KernelSpec) -> BuiltKernel:
        rules.check(spec, target)
        built = build_source(
            render(spec), spec.name, target, spec=spec, cache=cache, progress=_silent, compile_source=compile_source
        )
        report(_describe(built), next(num_done), len(specs))
        if on_built:
            on_built(built)
        return built

    with ThreadPoolExecutor(max_workers=jobs) as pool:
        futures = [pool.submit(build_one, spec) for spec in specs]
        try:
            return [future.result() for future in futures]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def build_library(
    specs: Sequence[KernelSpec],
    target: str,
    *,
    jobs: int | None = None,
    cache: KernelCache | None = None,
    progress: Progress | None = None,
) -> Path:
    """One shared library of all `specs` for `target`, compiled by nvcc; its path in the cache.

    See compile/extension.py for what it exports. Raises SpecError, ToolchainError or CompileError.
    """
    from attnsmith.codegen.compile import extension

    path: Path = extension.build_library(specs, target, jobs=jobs, cache=cache, progress=progress)
    return path


def _describe(built: BuiltKernel) -> str:
    return f"{built.name} {'cached' if built.was_cached else f'{built.seconds:.1f} s'}"


class _Job:
    """One compilation: its inputs and their digest."""

    def __init__(
        self,
        source: str,
        name: str,
        target: str,
        spec: KernelSpec | None,
        extra_flags: tuple[str, ...],
        toolchain: Toolchain,
        compile_source: Callable[..., nvrtc.CompiledKernel],
    ) -> None:
        self.compile_source = compile_source
        self.source = source
        self.name = name
        self.target = target
        self.spec = spec
        self.extra_flags = extra_flags
        self.toolchain = toolchain
        self.flags = nvrtc.flags(target, extra_flags)
        self.digest = kernel_digest(source, target, toolchain, self.flags)

    def manifest(self, seconds: float) -> dict[str, Any]:
        """What the entry says of itself."""
        return {
            "name": self.name,
            "target": self.target,
            "compiler": "nvrtc",
            "versions": self.toolchain.identity(),
            "flags": list(self.flags),
            "seconds": round(seconds, 3),
            "built_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }


@contextlib.contextmanager
def held_lock(cache: DirectoryCache, digest: str, timeout: float = 900.0) -> Iterator[bool]:
    """Yields True with the cache's lock held, False with a warning where it cannot be had within `timeout` seconds.

    Without it two processes may build the same entry, which costs time only: publishing is safe.
    """
    with contextlib.ExitStack() as stack:
        is_held = True
        try:
            stack.enter_context(cache.lock(digest, timeout))
        except CacheError as error:
            _LOG.warning("%s (continuing without a lock)", error)
            is_held = False
        yield is_held


def _compile_and_store(job: _Job, cache: KernelCache, progress: Progress | None) -> BuiltKernel:
    report = progress or _log_progress
    report(f"compiling {job.name} for {job.target}", 0, 1)
    try:
        compiled = job.compile_source(
            job.source, job.name, target=job.target, toolchain=job.toolchain, extra_flags=job.extra_flags
        )
    except CompileError as error:
        raise keep_failure(error, cache.kernels, f"{job.name}-{job.target}-{job.digest[:12]}", job.source) from error
    report(f"compiled {job.name} for {job.target} in {compiled.cpu_seconds:.1f} s of CPU", 1, 1)
    directory = _stored(job, compiled, cache)
    return BuiltKernel(
        spec=job.spec,
        target=job.target,
        name=job.name,
        digest=job.digest,
        directory=directory,
        cubin=compiled.cubin,
        ptx=compiled.ptx,
        log=compiled.log,
        seconds=compiled.cpu_seconds,
        was_cached=False,
    )


def _silent(message: str, done: int, total: int) -> None:
    """For a part of a build that reports itself."""


def _log_progress(message: str, done: int, total: int) -> None:
    _LOG.info("%s", message)


def _stored(job: _Job, compiled: nvrtc.CompiledKernel, cache: KernelCache) -> Path | None:
    files = {
        "kernel.cu": job.source.encode(),
        "kernel.cubin": compiled.cubin,
        "kernel.ptx": compiled.ptx.encode(),
        "kernel.log": compiled.log.encode(),
    }
    try:
        directory: Path = cache.publish(job.digest, files, job.manifest(compiled.cpu_seconds))
    except CacheError as error:
        _LOG.warning("%s (%s is used from memory, and compiled again next time)", error, job.name)
        return None
    return directory


def keep_failure(error: CompileError, cache: DirectoryCache, stem: str, source: str | None = None) -> CompileError:
    """The same error, naming files below the cache's failed folder with its log and source, if they can be written."""
    log_path = cache.folder / "failed" / f"{stem}.log"
    try:
        log_path.parent.mkdir(parents=True, exist_ok=True)
        log_path.write_text(error.log, encoding="utf-8")
        if source is not None:
            log_path.with_suffix(".cu").write_text(source, encoding="utf-8")
    except OSError:
        return error
    kept = f"{log_path.with_suffix('.cu')} and the .log beside it" if source is not None else str(log_path)
    return CompileError(asked=error.asked, got=error.got, allowed=error.allowed, do=f"{error.do} See {kept}.",
                        log=error.log)  # fmt: skip


def _from_entry(job: _Job, entry: Entry) -> BuiltKernel:
    return BuiltKernel(
        spec=job.spec,
        target=job.target,
        name=job.name,
        digest=job.digest,
        directory=entry.directory,
        cubin=entry.files["kernel.cubin"],
        ptx=entry.files["kernel.ptx"].decode(),
        log=entry.files["kernel.log"].decode(),
        seconds=float(entry.manifest["seconds"]),
        was_cached=True,
    )
