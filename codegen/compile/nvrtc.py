# SPDX-License-Identifier: Apache-2.0
"""Compiles one kernel's source with NVRTC in this process: cubin, PTX and log from a single pass.

Needs no nvcc, no host compiler and no GPU. NVRTC's precompiled headers are not used: an SM80 kernel took 5.6 s of CPU
without and 5.9 s with them (CUDA 13.0), because instantiation dominates, not parsing. Not responsible for finding NVRTC
(toolchain.py), for keeping the result (cache.py) or for what the source says (render.py).
"""

from __future__ import annotations

import ctypes
import functools
import logging
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass

from attnsmith.codegen.compile.ptx import strip_unreferenced_variables
from attnsmith.codegen.errors import CompileError, SpecError, ToolchainError
from attnsmith.codegen.toolchain import Nvrtc, Toolchain, default_toolchain

_LOG = logging.getLogger(__name__)

MATH_FLAGS: tuple[str, ...] = ("--ftz=true",)
"""Flush fp32 subnormals to zero, for both compilers: scores that small are all the same weight, and without it ptxas
keeps a second form of some operands and spills in the largest tiles (100 bytes at head_dim 64 causal 128x128)."""
FLAGS: tuple[str, ...] = ("-std=c++17", "-default-device", "-DNDEBUG", "--ptxas-options=-v", *MATH_FLAGS)
"""Of every compilation. -default-device: CuTe and libcu++ have functions without an execution space."""


@dataclass(frozen=True, kw_only=True)
class CompiledKernel:
    """What one compilation produced."""

    cubin: bytes
    """For the target's GPUs."""
    ptx: str
    """The same kernel for the simulator, without the variables that no instruction refers to."""
    log: str
    """Of NVRTC and ptxas -v: registers, spills, warnings."""
    cpu_seconds: float
    """CPU time of the compiling thread."""


def flags(target: str, extra_flags: Sequence[str] = ()) -> tuple[str, ...]:
    """All flags but the include folders: what the cache key covers. `target` is for example "sm_80"."""
    if not re.fullmatch(r"sm_\d+[af]?", target):
        raise SpecError(asked="compile for a target", got=repr(target), allowed="sm_80, sm_86, sm_89, sm_90, ...",
                        do="Pass a target, not a kernel family.")  # fmt: skip
    return (f"--gpu-architecture={target}", *FLAGS, *extra_flags)


@functools.lru_cache(maxsize=4)
def _load(nvrtc: Nvrtc) -> ctypes.CDLL:
    try:
        if nvrtc.builtins is not None:
            ctypes.CDLL(str(nvrtc.builtins), mode=ctypes.RTLD_GLOBAL)
        library = ctypes.CDLL(str(nvrtc.library), mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise ToolchainError(
            asked=f"load {nvrtc.library}",
            got=str(error),
            allowed="a loadable NVRTC",
            do="Reinstall nvidia-cuda-nvrtc, or set ATTNSMITH_NVRTC to another one.",
        ) from error
    library.nvrtcGetErrorString.restype = ctypes.c_char_p
    return library


class _Program:
    """An nvrtcProgram, destroyed when left."""

    def __init__(self, library: ctypes.CDLL, source: str, file_name: str) -> None:
        self._library = library
        self._handle = ctypes.c_void_p()
        self._check(
            library.nvrtcCreateProgram(
                ctypes.byref(self._handle), source.encode(), file_name.encode(), 0, None, None
            )
        )  # fmt: skip

    def __enter__(self) -> _Program:
        return self

    def __exit__(self, *_: object) -> None:
        self._library.nvrtcDestroyProgram(ctypes.byref(self._handle))

    def compile(self, options: Sequence[str]) -> str | None:
        """None, or the name of the error. ctypes releases the GIL meanwhile."""
        argv = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        status = self._library.nvrtcCompileProgram(self._handle, len(options), argv)
        return None if status == 0 else self._name(status)

    def fetch(self, what: str) -> bytes:
        """`what` is "CUBIN", "PTX" or "ProgramLog"."""
        size = ctypes.c_size_t()
        self._check(getattr(self._library, f"nvrtcGet{what}Size")(self._handle, ctypes.byref(size)))
        buffer = ctypes.create_string_buffer(max(size.value, 1))
        self._check(getattr(self._library, f"nvrtcGet{what}")(self._handle, buffer))
        return buffer.raw[: size.value]

    def fetch_text(self, what: str) -> str:
        return self.fetch(what).rstrip(b"\0").decode(errors="replace")

    def _name(self, status: int) -> str:
        return str(self._library.nvrtcGetErrorString(status).decode())

    def _check(self, status: int) -> None:
        if status != 0:
            raise ToolchainError(asked="use NVRTC", got=self._name(status), allowed="NVRTC_SUCCESS",
                                 do="Run `attnsmith doctor`.")  # fmt: skip


def supported_targets(toolchain: Toolchain | None = None) -> tuple[int, ...]:
    """Compute capabilities that the installed NVRTC compiles for, for example (80, 86, 90). Raises ToolchainError."""
    library = _load((toolchain or default_toolchain()).nvrtc)
    count = ctypes.c_int()
    library.nvrtcGetNumSupportedArchs(ctypes.byref(count))
    found = (ctypes.c_int * count.value)()
    library.nvrtcGetSupportedArchs(found)
    return tuple(found)


def compile_source(
    source: str,
    name: str,
    *,
    target: str,
    toolchain: Toolchain | None = None,
    extra_flags: Sequence[str] = (),
) -> CompiledKernel:
    """Compiles `source`, whose entry is `name`, for `target` ("sm_80"). Safe to call from several threads.

    Raises CompileError with the compiler's log, or ToolchainError where NVRTC or headers are missing.
    """
    toolchain = toolchain or default_toolchain()
    options = [*flags(target, extra_flags), *(f"-I{folder}" for folder in toolchain.include_dirs())]
    start = time.thread_time()
    with _Program(_load(toolchain.nvrtc), source, f"{name}.cu") as program:
        failure = program.compile(options)
        log = program.fetch_text("ProgramLog")
        if failure is not None:
            raise compile_error(name, target, failure, log)
        cubin, ptx = program.fetch("CUBIN"), program.fetch_text("PTX")
    if f".entry {name}" not in ptx:
        raise compile_error(name, target, f"no kernel named {name}", log)
    seconds = time.thread_time() - start
    _LOG.debug("compiled %s for %s in %.1f s of CPU", name, target, seconds)
    return CompiledKernel(cubin=cubin, ptx=strip_unreferenced_variables(ptx), log=log, cpu_seconds=seconds)


def compile_error(name: str, target: str, failure: str, log: str) -> CompileError:
    """The error of a kernel that does not compile: the first diagnostic in the message, all of them in `log`."""
    first = next((line.strip() for line in log.splitlines() if "error" in line), "")
    return CompileError(
        asked=f"compile {name} for {target}",
        got=f"{failure}: {first}" if first else failure,
        allowed="a source that compiles",
        do="Correct the source; if attnsmith generated it unchanged, report it with its log.",
        log=log,
    )
