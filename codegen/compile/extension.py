# SPDX-License-Identifier: Apache-2.0
"""AOT: a kernel set compiled by nvcc into one shared library that holds its images as data.

Three steps, each parallel within the machine's memory and each resumed where an interrupted build stopped:
translation units of several kernels to PTX (nvcc; CuTe's headers dominate, so kernels share them), each kernel's PTX
to a cubin (ptxas), and a table of both linked through torch.utils.cpp_extension. The library has no host code of
CUDA's: it needs neither libcudart nor a driver to load, and the launcher treats its images like JIT's. Not responsible
for the library's layout (library.py) or for what is stored where (cache.py).
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnsmith.codegen import dispatch, rules
from attnsmith.codegen.build import Progress, held_lock, keep_failure
from attnsmith.codegen.cache import DirectoryCache, KernelCache
from attnsmith.codegen.compile import library, nvrtc, ptx
from attnsmith.codegen.compile.jobs import NVCC_BYTES, default_jobs
from attnsmith.codegen.compile.ninja import Edge, edge_seconds, join, ninja_on_path, run_ninja, write_ninja_file
from attnsmith.codegen.cuda_roots import Surroundings, cccl_version, toolkit_root
from attnsmith.codegen.digest import library_digest
from attnsmith.codegen.errors import CacheError, CompileError, SpecError, ToolchainError
from attnsmith.codegen.nvcc import Nvcc, find_nvcc
from attnsmith.codegen.render import include_dir, render
from attnsmith.codegen.spec import KernelSpec
from attnsmith.codegen.toolchain import find_cutlass_headers, find_host_compiler

_LOG = logging.getLogger(__name__)

LIBRARY_FILE = "libattnsmith_kernels.so"
"""Of every AOT library, in its own cache entry."""

KERNELS_PER_UNIT = 4
"""A translation unit's kernels: more save headers, fewer spread over cores and take less memory each."""

NVCC_FLAGS: tuple[str, ...] = (
    "-std=c++17",
    "-DNDEBUG",
    "--expt-relaxed-constexpr",
    "-diag-suppress=177",
    *nvrtc.MATH_FLAGS,
)
"""Of every translation unit."""

LOCK_SECONDS = 6 * 3600.0
"""How long to wait for another process that builds the same library."""

PTXAS_FLAGS: tuple[str, ...] = ("-v",)
"""Of every cubin."""


@dataclass(frozen=True, kw_only=True)
class AotToolchain:
    """nvcc and what takes part beside it."""

    nvcc: Nvcc
    """With its own headers."""
    host_compiler: Path
    """Preprocesses for nvcc, and compiles the table."""
    include_dirs: tuple[Path, ...]
    """Ours, CUTLASS's, and CCCL's where it is not nvcc's own."""
    versions: Mapping[str, str]
    """For the cache key."""


def find_aot_toolchain(around: Surroundings | None = None) -> AotToolchain:
    """Raises ToolchainError."""
    around = around or Surroundings.of_this_process()
    nvcc, cutlass = find_nvcc(around), find_cutlass_headers(around)
    host_compiler = find_host_compiler(around)
    folders = toolkit_root(nvcc.home, nvcc.origin).cccl_dirs
    cccl = next((version for folder in folders if (version := cccl_version(folder))), None)
    if cccl is None:
        raise ToolchainError(
            asked=f"compile CuTe with {nvcc.path}",
            got=f"no cuda/std below {nvcc.home}",
            allowed="a toolkit with the CCCL headers",
            do="Run `pip install attnsmith[toolkit]`, or set ATTNSMITH_NVCC to the nvcc of a complete toolkit.",
        )
    versions = {
        "nvcc": nvcc.version,
        "host_compiler": _reported_version(host_compiler),
        "cuda": nvcc.cuda_version,
        "cccl": cccl,
        "cutlass": cutlass.version,
    }
    return AotToolchain(
        nvcc=nvcc, host_compiler=host_compiler, include_dirs=(include_dir(), cutlass.path), versions=versions
    )


@functools.lru_cache(maxsize=8)
def _reported_version(program: Path) -> str:
    """The first line of what `program --version` prints."""
    try:
        run = subprocess.run([str(program), "--version"], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise ToolchainError(
            asked=f"run {program} --version",
            got=str(error),
            allowed="a working compiler",
            do="Run `attnsmith doctor`, and reinstall it or choose another (ATTNSMITH_NVCC, CXX).",
        ) from error
    return run.stdout.strip().partition("\n")[0]


def unit_groups(specs: Sequence[KernelSpec], jobs: int) -> list[list[KernelSpec]]:
    """Neighbours share a translation unit: at most KERNELS_PER_UNIT each, fewer where that leaves jobs without work."""
    num_units = max(-(-len(specs) // KERNELS_PER_UNIT), min(jobs, len(specs)))
    bounds = [len(specs) * index // num_units for index in range(num_units + 1)]
    return [list(specs[start:end]) for start, end in itertools.pairwise(bounds)]


def build_library(
    specs: Sequence[KernelSpec],
    target: str,
    *,
    jobs: int | None = None,
    cache: KernelCache | None = None,
    progress: Progress | None = None,
) -> Path:
    """The library of `specs` for `target`, from the cache or built; read it with library.read_library.

    `jobs` None: what cores and memory allow. `progress` gets finished and all steps over the whole build. A cache that
    cannot be written costs a warning: the library is then in a temporary folder. Raises SpecError, ToolchainError or
    CompileError.
    """
    specs = _checked(specs, target)
    cache = cache or KernelCache()
    toolchain = find_aot_toolchain()
    sources = {spec.name: render(spec) for spec in specs}
    digest = library_digest(sources, target, toolchain.versions, include_dir(), [*NVCC_FLAGS, *PTXAS_FLAGS])
    with held_lock(cache.libraries, digest, LOCK_SECONDS) as is_held:
        entry = cache.libraries.load(digest)
        if entry is not None:
            return Path(entry.directory / LIBRARY_FILE)
        with _work_folder(cache.libraries, digest, is_held) as (folder, is_in_cache):
            build = _Build(specs, target, sources, toolchain, folder, jobs, progress)
            try:
                built = build.run()
            except CompileError as error:
                raise keep_failure(error, cache.libraries, f"library-{target}-{digest[:12]}") from error
            except OSError as error:
                raise _no_space(folder, error) from error
            return _published(build, built, digest, cache) if is_in_cache else built


def _checked(specs: Sequence[KernelSpec], target: str) -> list[KernelSpec]:
    unique = list(dict.fromkeys(specs))
    if not unique:
        raise SpecError(asked="build a library", got="no kernels", allowed="at least one", do="Pass specs.")
    for spec in unique:
        rules.check(spec, target)
    return unique


@contextlib.contextmanager
def _work_folder(cache: DirectoryCache, digest: str, is_held: bool) -> Iterator[tuple[Path, bool]]:
    """The build's folder, and whether it is the cache's. That one survives a failed build, which is resumed."""
    is_in_cache = is_held
    try:
        folder = cache.resumable_folder(digest) if is_held else Path(tempfile.mkdtemp(prefix="attnsmith-"))
    except CacheError as error:
        _LOG.warning("%s (the library stays in a temporary folder)", error)
        folder, is_in_cache = Path(tempfile.mkdtemp(prefix="attnsmith-")), False
    try:
        yield folder, is_in_cache
    except BaseException:
        if not is_in_cache:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    if is_in_cache:
        shutil.rmtree(folder, ignore_errors=True)


def _no_space(folder: Path, error: OSError) -> CacheError:
    return CacheError(
        asked=f"build a library in {folder}",
        got=str(error),
        allowed="a writable folder with free space",
        do="Free space (attnsmith clean), or set ATTNSMITH_CACHE_DIR to another folder.",
    )


def _published(build: _Build, built: Path, digest: str, cache: KernelCache) -> Path:
    files: dict[str, bytes | Path] = {LIBRARY_FILE: built.read_bytes(), "build.log": build.log().encode()}
    try:
        directory = cache.libraries.publish(digest, files, build.manifest())
    except CacheError as error:
        kept = Path(tempfile.mkdtemp(prefix="attnsmith-")) / LIBRARY_FILE
        _LOG.warning("%s (the library stays in %s)", error, kept)
        return Path(shutil.copy2(built, kept))
    return Path(directory / LIBRARY_FILE)


class _Build:
    """One build in one folder, where unit_*.cu, NAME.ptx, NAME.cubin and link/ appear in this order."""

    def __init__(
        self,
        specs: Sequence[KernelSpec],
        target: str,
        sources: Mapping[str, str],
        toolchain: AotToolchain,
        folder: Path,
        jobs: int | None,
        progress: Progress | None,
    ) -> None:
        self.specs = specs
        self.target = target
        self.sources = sources
        self.toolchain = toolchain
        self.folder = folder
        self.jobs = jobs or default_jobs(len(specs), NVCC_BYTES)
        self.progress = progress or (lambda message, done, total: _LOG.info("[%d/%d] %s", done, total, message))
        self.groups = unit_groups(specs, self.jobs)
        self.total = len(self.groups) + len(specs) + 1

    def run(self) -> Path:
        """Returns the library's path in the folder."""
        _LOG.info("building %d kernels for %s, %d at a time", len(self.specs), self.target, self.jobs)
        self._compile_units()
        self._split_units()
        self._assemble_kernels()
        return self._link()

    def _compile_units(self) -> None:
        edges = []
        for index, group in enumerate(self.groups):
            stem = f"unit_{index}"
            _write_if_changed(self.folder / f"{stem}.cu", "\n".join(self.sources[spec.name] for spec in group))
            edges.append(
                Edge(
                    output=f"{stem}.ptx",
                    inputs=(f"{stem}.cu",),
                    command=self._unit_command(stem),
                    description=f"compiled {', '.join(spec.name for spec in group)}",
                )
            )
        self._ninja("units.ninja", edges, finished=0)

    def _unit_command(self, stem: str) -> str:
        includes = [f"-I{folder}" for folder in self.toolchain.include_dirs]
        arch = f"-arch={self.target.replace('sm_', 'compute_')}"
        compiler: list[str | Path] = ["-ccbin", self.toolchain.host_compiler]
        command: str = join(
            self.toolchain.nvcc.path, *compiler, "-ptx", arch, *NVCC_FLAGS, *includes, f"{stem}.cu", "-o", f"{stem}.ptx"
        )
        return command

    def _split_units(self) -> None:
        for index, group in enumerate(self.groups):
            parts = ptx.split_kernels((self.folder / f"unit_{index}.ptx").read_text(encoding="utf-8"))
            for spec in group:
                if spec.name not in parts:
                    raise CompileError(
                        asked=f"compile {spec.name} for {self.target}",
                        got=f"a translation unit with {', '.join(parts) or 'no kernel'}",
                        allowed="one kernel of the spec's name",
                        do="Correct the template.",
                    )
                _write_if_changed(self.folder / f"{spec.name}.ptx", parts[spec.name])

    def _assemble_kernels(self) -> None:
        ptxas = self.toolchain.nvcc.home / "bin" / "ptxas"
        edges = []
        for spec in self.specs:
            name = spec.name
            command = join(ptxas, f"-arch={self.target}", *PTXAS_FLAGS, f"{name}.ptx", "-o", f"{name}.cubin")
            log = join(f"{name}.log")
            edges.append(
                Edge(
                    output=f"{name}.cubin",
                    inputs=(f"{name}.ptx",),
                    command=f"{command} > {log} 2>&1 || {{ cat {log}; exit 1; }}",
                    description=f"assembled {name}",
                )
            )
        self._ninja("kernels.ninja", edges, finished=len(self.groups))

    def _ninja(self, file_name: str, edges: Sequence[Edge], finished: int) -> None:
        write_ninja_file(self.folder / file_name, edges)
        run_ninja(
            self.folder / file_name,
            jobs=self.jobs,
            asked=f"build {len(self.specs)} kernels for {self.target}",
            on_step=lambda message, done, _: self.progress(message, finished + done, self.total),
        )

    def _link(self) -> Path:
        """Always from scratch: cpp_extension's lock of a killed build would be waited for forever."""
        folder = self.folder / "link"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        entries = [dispatch.entry(spec, self.target) for spec in self.specs]
        (folder / "kernel_table.cpp").write_text(library.table_source(entries), encoding="utf-8")
        for spec in self.specs:
            for suffix in (".cubin", ".ptx"):
                shutil.copyfile(self.folder / f"{spec.name}{suffix}", folder / f"{spec.name}{suffix}")
        built = _torch_build(folder, self.toolchain.nvcc.home)
        self.progress(f"linked {len(self.specs)} kernels", self.total, self.total)
        return built

    def manifest(self) -> dict[str, Any]:
        """What the entry says of itself, with wall seconds per kernel."""
        seconds = edge_seconds(self.folder)
        kernels = {}
        for index, group in enumerate(self.groups):
            share = seconds.get(f"unit_{index}.ptx", 0.0) / len(group)
            kernels.update({spec.name: round(share + seconds.get(f"{spec.name}.cubin", 0.0), 2) for spec in group})
        return {
            "target": self.target,
            "compiler": "nvcc",
            "versions": dict(self.toolchain.versions),
            "flags": [*NVCC_FLAGS, *PTXAS_FLAGS],
            "kernels": kernels,
            "built_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }

    def log(self) -> str:
        """ptxas's output for every kernel."""
        return "".join((self.folder / f"{spec.name}.log").read_text(encoding="utf-8") for spec in self.specs)


def _write_if_changed(path: Path, text: str) -> None:
    """An unchanged file keeps its time, so that ninja keeps what was made of it."""
    with contextlib.suppress(OSError):
        if path.read_text(encoding="utf-8") == text:
            return
    path.write_text(text, encoding="utf-8")


def _cpp_extension(cuda_home: Path) -> Any:
    """torch's module, with our toolkit instead of its guess: the parent of the folder of any nvcc on PATH."""
    logger = logging.getLogger("torch.utils.cpp_extension")
    level = logger.level
    logger.setLevel(logging.ERROR)  # it warns that there is no GPU, which nothing here needs
    try:
        from torch.utils import cpp_extension
    finally:
        logger.setLevel(level)
    cpp_extension.CUDA_HOME = str(cuda_home)
    return cpp_extension


def _torch_build(folder: Path, cuda_home: Path) -> Path:
    """kernel_table.cpp compiled and linked by torch's ninja rules; --as-needed keeps it from depending on torch."""
    cpp_extension = _cpp_extension(cuda_home)
    name = f"attnsmith_kernels_{time.time_ns()}"  # cpp_extension appends a count to a name that it has seen
    with ninja_on_path():
        try:
            cpp_extension.load(
                name=name,
                sources=[str(folder / "kernel_table.cpp")],
                extra_cflags=["-O1"],
                extra_ldflags=["-Wl,--as-needed", "-Wl,-z,noexecstack"],
                extra_include_paths=[str(include_dir())],
                build_directory=str(folder),
                with_cuda=False,
                is_python_module=False,
            )
        except RuntimeError as error:
            raise CompileError(
                asked="link the kernel library",
                got=str(error).splitlines()[0],
                allowed="a working C++ compiler",
                do="Run `attnsmith doctor`; see the error's log.",
                log=str(error),
            ) from error
    return folder / f"{name}.so"
