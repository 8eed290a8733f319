# SPDX-License-Identifier: Apache-2.0
"""attnsmith.simulate and what it launched: which device CPU tensors run on, and records of launches.

The setting is the process's, not a thread's: work handed to another thread must not silently leave the simulator. Not
responsible for executing PTX (tools/ptxsim) or for launching (csrc/sim_device.cpp).
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from attnsmith import launcher
from attnsmith.capi import ASYNC_MODES, SCHEDULES, CApi, SimulationOptions
from attnsmith.codegen.limits import TARGETS
from attnsmith.errors import ArgumentError
from attnsmith.progress import visible_progress

DEVICE_TARGETS = {"a100": "sm_80", "rtx3090": "sm_86", "rtx4090": "sm_89", "h100": "sm_90a", "h200": "sm_90a"}
"""Simulated GPU -> the compile target of its kernels."""

ENVIRONMENT_VARIABLE = "ATTNSMITH_SIMULATE"


@dataclass(frozen=True, kw_only=True)
class Launch:
    """One kernel launch."""

    kernel: str
    """Name of the kernel."""
    device: str
    """`sim:a100`, or `cuda:0`."""
    grid: int
    """CTAs."""
    stats: dict[str, Any] | None
    """The simulator's statistics (fields of attnsmith.tools.ptxsim.Stats); None on a GPU."""


_active: list[SimulationOptions] = []
_recorders: list[list[Launch]] = []


@contextlib.contextmanager
def simulate(
    device: str = "a100",
    *,
    seed: int = 0,
    schedule: str = "round_robin",
    async_mode: str = "late",
    num_threads: int = 0,
    step_budget: int = 0,
    num_sms: int = 0,
) -> Iterator[None]:
    """Inside, attention on CPU tensors runs the real kernels on a simulated GPU, in every thread of this process.

    Args:
        device: a100, rtx3090, rtx4090, h100 or h200.
        seed: of the random schedule and the random async mode.
        schedule: order of warps, "round_robin" or "random".
        async_mode: when cp.async arrives, "late" (as late as the ISA allows) or "random".
        num_threads: host threads; 0 is every core.
        step_budget: warp instructions per launch; 0 is the simulator's default.
        num_sms: multiprocessors that persistent kernels size their grids for; 0 is as many as the GPU has.

    Raises:
        ArgumentError (a ValueError): an unknown device, schedule or async_mode, a number out of range.
        ToolchainError, CompileError: launcher or simulator cannot be built on this machine (both need g++).
    """
    options = _make_options(device, seed, schedule, async_mode, num_threads, step_budget, num_sms)
    _active.append(options)
    try:
        yield
    finally:
        _active.remove(options)


def current() -> SimulationOptions | None:
    """The simulation in effect: the innermost `simulate`, else ATTNSMITH_SIMULATE, else None."""
    if _active:
        return _active[-1]
    device = os.environ.get(ENVIRONMENT_VARIABLE, "")
    if not device:
        return None
    if _plain(device) not in DEVICE_TARGETS:
        raise ArgumentError(
            asked=f"simulate the device of the environment variable {ENVIRONMENT_VARIABLE}", got=repr(device),
            allowed=", ".join(DEVICE_TARGETS), do=f"Set {ENVIRONMENT_VARIABLE} to one of these, or unset it.",
        )  # fmt: skip
    return _make_options(device, 0, "round_robin", "late", 0, 0, 0)


def _plain(device: Any) -> Any:
    """`sim:A100` -> `a100`; what is no string stays."""
    return device.removeprefix("sim:").lower() if isinstance(device, str) else device


def _in_range(name: str, value: Any, bits: int) -> None:
    if type(value) is not int or not 0 <= value < 2**bits:
        raise ArgumentError(
            asked=f"simulate with {name}={value!r}", got=repr(value), allowed=f"an int from 0 to 2**{bits} - 1",
            do=f"Pass another {name}.",
        )  # fmt: skip


def _one_of(name: str, value: Any, allowed: dict[str, Any]) -> None:
    if value not in allowed:
        raise ArgumentError(
            asked=f"simulate with {name}={value!r}", got=repr(value), allowed=", ".join(allowed),
            do="Pass one of these.",
        )  # fmt: skip


@functools.lru_cache(maxsize=64)
def _make_options(
    device: str, seed: int, schedule: str, async_mode: str, num_threads: int, step_budget: int, num_sms: int
) -> SimulationOptions:
    device = _plain(device)
    _one_of("device", device, DEVICE_TARGETS)
    _one_of("schedule", schedule, SCHEDULES)
    _one_of("async_mode", async_mode, ASYNC_MODES)
    _in_range("seed", seed, 64)
    _in_range("num_threads", num_threads, 32)
    _in_range("step_budget", step_budget, 64)
    _in_range("num_sms", num_sms, 31)
    from attnsmith.tools.ptxsim.build import library_path
    from attnsmith.tools.ptxsim.devices import devices

    with visible_progress():
        library = library_path()
        launcher.load()
    target = DEVICE_TARGETS[device]
    return SimulationOptions(
        library=library,
        device=device,
        target=target,
        max_smem_bytes=TARGETS[target].smem_per_block,
        seed=seed,
        schedule=schedule,
        async_mode=async_mode,
        num_threads=num_threads,
        step_budget=step_budget,
        num_sms=num_sms or devices()[device]["sm_count"],
    )


def run(options: SimulationOptions, op: Callable[..., Any], *args: Any) -> Any:
    """Calls a launcher op on the simulated device; failures surface as the simulator's or dispatch's own error."""
    from attnsmith import dispatch

    api = launcher.load()
    api.set_simulation(options)
    dispatch.forget_pending()
    try:
        result = op(*args)
    except RuntimeError as error:
        dispatch.raise_pending(error)
        _raise_sim_error(api, error)
        raise
    finally:
        api.set_simulation(None)
    record(api)
    return result


def _raise_sim_error(api: CApi, error: RuntimeError) -> None:
    report = api.take_sim_error()
    if report:
        from attnsmith.tools.ptxsim.errors import from_json

        raise from_json(report) from error


def record(api: CApi) -> None:
    """Hands the calling thread's last launch to every `record_launches` block."""
    if _recorders:
        launch = _to_launch(api.last_launch())
        if launch is not None:
            for recorder in _recorders:
                recorder.append(launch)


def is_recording() -> bool:
    """True inside a `record_launches` block."""
    return bool(_recorders)


def _to_launch(row: dict[str, Any]) -> Launch | None:
    if not row:
        return None
    is_simulated = row["device_index"] < 0
    return Launch(
        kernel=row["kernel"],
        device=f"sim:{row['device']}" if is_simulated else f"cuda:{row['device_index']}",
        grid=row["grid"],
        stats=row["stats"] if is_simulated else None,
    )


@contextlib.contextmanager
def record_launches() -> Iterator[list[Launch]]:
    """Collects every launch inside the block, in order, simulated and on GPUs, of all threads."""
    launches: list[Launch] = []
    _recorders.append(launches)
    try:
        yield launches
    finally:
        _recorders[:] = [recorder for recorder in _recorders if recorder is not launches]


def last_launch() -> Launch | None:
    """What the calling thread's last attention call launched; None when it ran no kernel (reference, empty input)."""
    api = launcher.loaded()
    return None if api is None else _to_launch(api.last_launch())


def forget_last_launch() -> None:
    """After this the calling thread has launched nothing: the reference ran."""
    api = launcher.loaded()
    if api is not None:
        api.forget_last_launch()
