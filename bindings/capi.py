# SPDX-License-Identifier: Apache-2.0
"""The launcher's C API (csrc/capi.h) as typed Python: one method per function. No policy and no state of its own."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnsmith.codegen.compile.library import SCHEDULER_CODES, KernelDesc

ABI_VERSION = 2

SOURCES = {"built-in": 0, "AOT": 1, "JIT": 2}
"""Where a kernel came from -> its code."""

SCHEDULES = {"round_robin": 0, "random": 1}
"""Order in which the simulator runs warps -> its code."""

ASYNC_MODES = {"late": 0, "random": 1}
"""When the simulator completes asynchronous copies -> its code."""


class TensorArg(ctypes.Structure):
    """attnsmith_tensor: a launch-ready tensor on a plain pointer; strides count elements."""

    _fields_ = (
        ("ptr", ctypes.c_void_p),
        ("batch", ctypes.c_int64),
        ("seqlen", ctypes.c_int64),
        ("nheads", ctypes.c_int64),
        ("head_dim", ctypes.c_int64),
        ("stride_batch", ctypes.c_int64),
        ("stride_row", ctypes.c_int64),
        ("stride_head", ctypes.c_int64),
        ("stride_head_dim", ctypes.c_int64),
    )


class DescaleArg(ctypes.Structure):
    """attnsmith_descale: fp32 (batch, nheads_k); without a pointer, 1."""

    _fields_ = (
        ("ptr", ctypes.c_void_p),
        ("stride_batch", ctypes.c_int64),
        ("stride_head", ctypes.c_int64),
    )


class ForwardArgs(ctypes.Structure):
    """attnsmith_fwd_args: one forward call."""

    _fields_ = (
        ("dtype", ctypes.c_int32),
        ("causal", ctypes.c_int32),
        ("softmax_scale", ctypes.c_double),
        ("q", TensorArg),
        ("k", TensorArg),
        ("v", TensorArg),
        ("out", TensorArg),
        ("lse", ctypes.c_void_p),
        ("out_dtype", ctypes.c_int32),
        ("pack_gqa", ctypes.c_int32),
        ("q_descale", DescaleArg),
        ("k_descale", DescaleArg),
        ("v_descale", DescaleArg),
    )


class Problem(ctypes.Structure):
    """attnsmith_problem: what a call asks of dispatch, as the miss handler gets it."""

    _fields_ = (
        ("dtype", ctypes.c_int32),
        ("out_dtype", ctypes.c_int32),
        ("head_dim", ctypes.c_int32),
        ("head_dim_v", ctypes.c_int32),
        ("is_causal", ctypes.c_int32),
        ("v_is_col_major", ctypes.c_int32),
        ("packs_gqa", ctypes.c_int32),
        ("can_use_tma", ctypes.c_int32),
        ("seqlen_q", ctypes.c_int64),
        ("target", ctypes.c_char_p),
        ("has_usable", ctypes.c_int32),
    )


class _SimOptions(ctypes.Structure):
    _fields_ = (
        ("library", ctypes.c_char_p),
        ("device", ctypes.c_char_p),
        ("target", ctypes.c_char_p),
        ("max_smem_bytes", ctypes.c_uint32),
        ("seed", ctypes.c_uint64),
        ("schedule", ctypes.c_int32),
        ("async_mode", ctypes.c_int32),
        ("num_threads", ctypes.c_uint32),
        ("step_budget", ctypes.c_uint64),
        ("num_sms", ctypes.c_int32),
    )


_TILE_FIELDS = ("block_m", "block_n", "num_warps", "num_stages", "cluster_size", "ctas_per_sm")

MISS_HANDLER = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(Problem), ctypes.POINTER(ctypes.c_char), ctypes.c_uint64)
"""Problem, message, message capacity -> 0 once a kernel is there."""


@dataclass(frozen=True, kw_only=True)
class SimulationOptions:
    """How the calling thread's CPU tensors are simulated."""

    library: Path
    """libptxsim."""
    device: str
    """Simulated GPU."""
    target: str
    """Its compile target."""
    max_smem_bytes: int
    """Shared memory per CTA."""
    seed: int
    """Of random schedules and asynchronous completion."""
    schedule: str
    """A key of SCHEDULES."""
    async_mode: str
    """A key of ASYNC_MODES."""
    num_threads: int
    """Host threads; 0 is every core."""
    step_budget: int
    """Warp instructions per launch; 0 is the simulator's default."""
    num_sms: int
    """Multiprocessors, which size the grids of persistent kernels."""


class CApi:
    """The functions of a loaded launcher library."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        for name in ("last_error", "dispatch_table", "last_launch", "take_sim_error"):
            getattr(self._library, f"attnsmith_{name}").restype = ctypes.c_char_p
        self._library.attnsmith_forward.argtypes = (ctypes.POINTER(ForwardArgs), ctypes.c_int, ctypes.c_void_p)
        self._library.attnsmith_num_encoded_tensor_maps.restype = ctypes.c_uint64
        self._handler: Any = None
        found = self._library.attnsmith_abi_version()
        if found != ABI_VERSION:
            raise RuntimeError(f"launcher {library._name}: got C API version {found}; allowed: {ABI_VERSION}.")

    def _check(self, status: int) -> None:
        if status != 0:
            raise RuntimeError(self._text("last_error"))

    def _text(self, name: str) -> str:
        value: bytes = getattr(self._library, f"attnsmith_{name}")()
        return value.decode(errors="replace")

    def register_kernel(self, entry: Mapping[str, Any], *, source: str, cubin: bytes, ptx: bytes) -> None:
        """Adds a kernel; `entry` is codegen.dispatch.entry(spec, target). The images are copied."""
        desc = KernelDesc(
            name=entry["name"].encode(),
            packed_key=entry["packed_key"],
            target=entry["target"].encode(),
            smem_bytes=entry["smem_bytes"],
            num_threads=entry["num_threads"],
            priority=entry["priority"],
            max_seqlen_q=entry["max_seqlen_q"] or 0,
            source=SOURCES[source],
            cubin=ctypes.cast(ctypes.c_char_p(cubin), ctypes.c_void_p),
            cubin_bytes=len(cubin),
            ptx=ctypes.cast(ctypes.c_char_p(ptx), ctypes.c_void_p),
            ptx_bytes=len(ptx),
            scheduler=SCHEDULER_CODES[entry["scheduler"]],
            **{name: entry[name] for name in _TILE_FIELDS},
        )
        self.register_desc(desc)

    def register_desc(self, desc: KernelDesc) -> None:
        """Adds a kernel as an AOT library describes it. The images are copied."""
        self._check(self._library.attnsmith_register_kernel(ctypes.byref(desc)))

    def clear_kernels(self) -> None:
        """Empties the table."""
        self._library.attnsmith_clear_kernels()

    def set_miss_handler(self, handler: Callable[..., int]) -> None:
        """`handler` has MISS_HANDLER's arguments; it must not raise."""
        self._handler = MISS_HANDLER(handler)
        self._library.attnsmith_set_miss_handler(self._handler)

    def dispatch_table(self) -> list[dict[str, Any]]:
        """Every registered kernel, in order of registration."""
        table: list[dict[str, Any]] = json.loads(self._text("dispatch_table"))
        return table

    def last_launch(self) -> dict[str, Any]:
        """The calling thread's last launch; empty when its last call launched nothing."""
        launch: dict[str, Any] = json.loads(self._text("last_launch"))
        return launch

    def forget_last_launch(self) -> None:
        """From now on the calling thread has launched nothing."""
        self._library.attnsmith_forget_last_launch()

    def take_sim_error(self) -> str:
        """The simulator's report of the calling thread's failed launch; "" when there is none."""
        return self._text("take_sim_error")

    def num_encoded_tensor_maps(self) -> int:
        """TMA descriptors that this process has encoded."""
        count: int = self._library.attnsmith_num_encoded_tensor_maps()
        return count

    def set_simulation(self, options: SimulationOptions | None) -> None:
        """For the calling thread; None leaves the simulator."""
        if options is None:
            self._check(self._library.attnsmith_set_simulation(None))
            return
        raw = _SimOptions(
            library=str(options.library).encode(),
            device=options.device.encode(),
            target=options.target.encode(),
            max_smem_bytes=options.max_smem_bytes,
            seed=options.seed,
            schedule=SCHEDULES[options.schedule],
            async_mode=ASYNC_MODES[options.async_mode],
            num_threads=options.num_threads,
            step_budget=options.step_budget,
            num_sms=options.num_sms,
        )
        self._check(self._library.attnsmith_set_simulation(ctypes.byref(raw)))

    def forward(self, args: ForwardArgs, *, device_index: int, stream: int = 0) -> None:
        """A forward call on plain pointers: CUDA device `device_index`, or -1 for the simulated device."""
        self._check(self._library.attnsmith_forward(ctypes.byref(args), device_index, stream))
