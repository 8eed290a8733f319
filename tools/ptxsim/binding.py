# SPDX-License-Identifier: Apache-2.0
"""ctypes view of the core's C ABI (csrc/ptxsim.h), function by function.

Not responsible for convenience: module.py is.
"""

from __future__ import annotations

import ctypes
import functools
import json
from pathlib import Path
from typing import Any

from attnsmith.tools.ptxsim import build
from attnsmith.tools.ptxsim.errors import PtxSimError, from_json


class Allocation(ctypes.Structure):
    """ptxsim_allocation: one range of host memory that a launch may touch."""

    _fields_ = (
        ("base", ctypes.c_uint64),
        ("bytes", ctypes.c_uint64),
        ("name", ctypes.c_char_p),
        ("writable", ctypes.c_int32),
        ("pad", ctypes.c_int32),
    )


class LaunchConfig(ctypes.Structure):
    """ptxsim_launch_config."""

    _fields_ = (
        ("device", ctypes.c_char_p),
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("cluster", ctypes.c_uint32 * 3),
        ("dynamic_smem_bytes", ctypes.c_uint32),
        ("num_threads", ctypes.c_uint32),
        ("seed", ctypes.c_uint64),
        ("schedule", ctypes.c_int32),
        ("async_mode", ctypes.c_int32),
        ("step_budget", ctypes.c_uint64),
        ("check_flags", ctypes.c_uint32),
        ("collect_stats", ctypes.c_uint32),
    )


CHECK_BOUNDS = 1
CHECK_INITIALIZED = 2
SKIP_RACES = 4
SKIP_PROXY = 8


class Core:
    """The loaded library. Every method raises a PtxSimError subclass for an error that the core reports."""

    def __init__(self, path: Path) -> None:
        self.path = path
        lib = ctypes.CDLL(str(path))
        char_pp = ctypes.POINTER(ctypes.c_void_p)
        _declare(lib.ptxsim_load, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t, char_pp)
        _declare(lib.ptxsim_parse, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t, char_pp)
        _declare(lib.ptxsim_unload, None, ctypes.c_void_p)
        _declare(lib.ptxsim_describe, ctypes.c_void_p, ctypes.c_void_p)
        _declare(lib.ptxsim_devices, ctypes.c_void_p)
        _declare(lib.ptxsim_free, None, ctypes.c_void_p)
        _declare(
            lib.ptxsim_launch,
            ctypes.c_int,
            ctypes.c_void_p,
            ctypes.c_char_p,
            ctypes.POINTER(LaunchConfig),
            ctypes.c_char_p,
            ctypes.c_size_t,
            ctypes.POINTER(Allocation),
            ctypes.c_size_t,
            char_pp,
            char_pp,
        )
        _declare(
            lib.ptxsim_encode_tensor_map,
            ctypes.c_int,
            ctypes.c_char_p,
            ctypes.c_uint32,
            ctypes.c_uint32,
            ctypes.c_uint64,
            ctypes.POINTER(ctypes.c_uint64),
            ctypes.POINTER(ctypes.c_uint64),
            ctypes.POINTER(ctypes.c_uint32),
            ctypes.POINTER(ctypes.c_uint32),
            *[ctypes.c_int32] * 4,
            char_pp,
        )
        self._lib = lib

    def load(self, ptx: bytes, *, allow_unsupported: bool = False) -> int:
        """Handle of a loaded module; with `allow_unsupported` unknown instructions are collected instead of raised."""
        error = ctypes.c_void_p()
        function = self._lib.ptxsim_parse if allow_unsupported else self._lib.ptxsim_load
        handle = function(ptx, len(ptx), ctypes.byref(error))
        if not handle:
            raise self._error(error, "the module did not load")
        return int(handle)

    def unload(self, handle: int) -> None:
        """Frees a module."""
        self._lib.ptxsim_unload(handle)

    def describe(self, handle: int) -> dict[str, Any]:
        """Entries, parameters, resources and unsupported instructions of a module."""
        return json.loads(self._text(self._lib.ptxsim_describe(handle)) or "{}")  # type: ignore[no-any-return]

    def devices(self) -> Any:
        """The device table, as parsed JSON."""
        return json.loads(self._text(self._lib.ptxsim_devices()) or "[]")

    def launch(
        self, handle: int, kernel: str, config: LaunchConfig, params: bytes, allocations: list[Allocation]
    ) -> str:
        """Runs one kernel; returns the statistics' JSON."""
        stats, error = ctypes.c_void_p(), ctypes.c_void_p()
        table = (Allocation * len(allocations))(*allocations)
        code = self._lib.ptxsim_launch(
            handle,
            kernel.encode(),
            ctypes.byref(config),
            params,
            len(params),
            table,
            len(allocations),
            ctypes.byref(stats),
            ctypes.byref(error),
        )
        text = self._text(stats.value)
        if code:
            raise self._error(error, f"launch of {kernel} failed with code {code}")
        return text or "{}"

    def encode_tensor_map(
        self,
        data_type: int,
        address: int,
        extents: list[int],
        strides: list[int],
        box: list[int],
        element_strides: list[int],
        swizzle: int,
        oob_fill: int,
    ) -> bytes:
        """The simulator's 128-byte tensor map; enumerators by value as in cuTensorMapEncodeTiled."""
        out, error = ctypes.create_string_buffer(128), ctypes.c_void_p()
        rank = len(extents)
        code = self._lib.ptxsim_encode_tensor_map(
            out,
            data_type,
            rank,
            address,
            (ctypes.c_uint64 * rank)(*extents),
            (ctypes.c_uint64 * max(1, rank - 1))(*strides),
            (ctypes.c_uint32 * rank)(*box),
            (ctypes.c_uint32 * rank)(*element_strides),
            0,
            swizzle,
            0,
            oob_fill,
            ctypes.byref(error),
        )
        if code:
            raise self._error(error, "the tensor map cannot be encoded")
        return out.raw

    def _text(self, pointer: int | None) -> str:
        if not pointer:
            return ""
        try:
            return ctypes.string_at(pointer).decode("utf-8", "replace")
        finally:
            self._lib.ptxsim_free(pointer)

    def _error(self, pointer: ctypes.c_void_p, fallback: str) -> PtxSimError:
        text = self._text(pointer.value)
        return from_json(text) if text else PtxSimError(fallback)


@functools.lru_cache(maxsize=2)
def _load(path: Path) -> Core:
    return Core(path)


def core() -> Core:
    """The core, compiled on first use on this machine."""
    return _load(build.library_path())


def _declare(function: Any, result: Any, *arguments: Any) -> None:
    function.restype = result
    function.argtypes = arguments
