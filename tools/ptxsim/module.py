# SPDX-License-Identifier: Apache-2.0
"""A loaded PTX module and its launch. Responsible for the Python interface; the core executes, arguments.py packs."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnsmith.tools.ptxsim import arguments, binding
from attnsmith.tools.ptxsim.arguments import Allocation
from attnsmith.tools.ptxsim.errors import LaunchError, ParseError
from attnsmith.tools.ptxsim.stats import Stats

SCHEDULES = {"round_robin": 0, "random": 1}
ASYNC_MODES = {"late": 0, "random": 1}


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One kernel of a module."""

    name: str
    """Symbol."""
    params: tuple[Mapping[str, Any], ...]
    """name, size and align (bytes) of each parameter, in order."""
    static_smem: int
    """Bytes of shared memory that the module declares."""
    reqntid: tuple[int, ...] | None
    """Block shape that the kernel requires, if it says so."""
    maxntid: tuple[int, ...] | None
    """Largest block shape, if the kernel says so."""
    registers: Mapping[str, int]
    """Virtual registers by type."""
    instructions: int
    """Static instruction count."""


class Module:
    """PTX in memory, ready to launch. Close it, use it as a context manager, or let it be collected."""

    def __init__(self, ptx: str | bytes, *, allow_unsupported: bool = False) -> None:
        """Loads PTX text.

        Args:
            ptx: the module's text.
            allow_unsupported: collect unknown instructions in `unsupported` instead of raising; launching an entry
                that contains one still raises.

        Raises:
            ParseError: the text is not PTX.
            UnsupportedInstruction: an instruction is not implemented; the error names its line.
        """
        self._core = binding.core()
        text = ptx.encode() if isinstance(ptx, str) else bytes(ptx)
        text = text.rstrip(b"\0")  # NVRTC counts the terminator as part of the text
        self._handle = self._core.load(text, allow_unsupported=allow_unsupported)
        self._finalizer = weakref.finalize(self, self._core.unload, self._handle)
        facts = self._core.describe(self._handle)
        self.version = str(facts.get("version", ""))
        self.target = str(facts.get("target", ""))
        self.entries: tuple[Entry, ...] = tuple(_entry(item) for item in facts.get("entries", []))
        self.unsupported: tuple[Mapping[str, Any], ...] = tuple(facts.get("unsupported", []))

    def __enter__(self) -> Module:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Frees the module; a later launch raises LaunchError."""
        self._finalizer()

    def entry(self, kernel: str) -> Entry:
        """Facts of one kernel.

        Raises:
            LaunchError: no such kernel.
        """
        for item in self.entries:
            if item.name == kernel:
                return item
        known = ", ".join(item.name for item in self.entries) or "none"
        raise LaunchError(
            f"find kernel {kernel}: got no entry of that name; allowed: {known}. Pass one of these.", {"kind": "launch"}
        )

    def launch(
        self,
        kernel: str,
        grid: int | Sequence[int],
        block: int | Sequence[int],
        args: Sequence[Any] | bytes,
        shared_bytes: int = 0,
        device: str = "a100",
        cluster: Sequence[int] = (1, 1, 1),
        seed: int = 0,
        schedule: str = "round_robin",
        async_mode: str = "late",
        allocations: Iterable[Allocation | tuple[int, int, str, bool]] = (),
        num_threads: int = 0,
        step_budget: int = 0,
        *,
        check_bounds: bool = True,
        check_initialized: bool = True,
        check_races: bool = True,
        check_proxy: bool = True,
        collect_stats: bool = True,
    ) -> Stats:
        """Runs one kernel to its end.

        Args:
            kernel: entry name.
            grid, block, cluster: up to three extents.
            args: one value per parameter (tensor, int, float, None, ctypes value, bytes), or the whole parameter block
                as bytes. Tensors are the memory that the kernel may touch.
            shared_bytes: dynamic shared memory in bytes.
            device: a100, rtx3090, rtx4090, h100 or h200.
            seed, schedule: "round_robin" warps, or a seeded "random" interleaving.
            async_mode: cp.async takes effect as "late" as the ISA allows, or at a seeded "random" point before.
            allocations: further memory: (address, bytes, name, writable) rows for pointers inside raw arguments.
            num_threads: host threads, 0 = all cores.
            step_budget: warp instructions that the launch may execute, 0 = the core's large default.
            check_bounds, check_initialized: switch a memory check off.
            check_races: False switches off the search for unordered accesses to shared memory, check_proxy: False only
                that for generic writes that the async proxy reads without a fence.
            collect_stats: False returns empty Stats.

        Raises:
            LaunchError: what the driver would refuse.
            PtxSimError: another subclass: what the kernel did wrong.
        """
        if not self._finalizer.alive:
            raise LaunchError(f"launch {kernel}: got a closed module; allowed: an open one. Load it again.")
        entry = self.entry(kernel)
        block_bytes, owned = arguments.pack(kernel, entry.params, args)
        given = [a if isinstance(a, Allocation) else Allocation(*a) for a in allocations]
        rows = [
            binding.Allocation(a.address, a.nbytes, a.name.encode(), int(a.is_writable), 0)
            for a in arguments.merge([*owned, *given])
        ]
        config = binding.LaunchConfig(
            device=device.encode(),
            grid=_extents(kernel, "grid", grid),
            block=_extents(kernel, "block", block),
            cluster=_extents(kernel, "cluster", cluster),
            dynamic_smem_bytes=_unsigned(kernel, "shared_bytes", shared_bytes, 32),
            num_threads=_unsigned(kernel, "num_threads", num_threads, 32),
            seed=_unsigned(kernel, "seed", seed, 64),
            schedule=_choice(kernel, "schedule", schedule, SCHEDULES),
            async_mode=_choice(kernel, "async_mode", async_mode, ASYNC_MODES),
            step_budget=_unsigned(kernel, "step_budget", step_budget, 64),
            check_flags=binding.CHECK_BOUNDS * check_bounds
            | binding.CHECK_INITIALIZED * check_initialized
            | binding.SKIP_RACES * (not check_races)
            | binding.SKIP_PROXY * (not check_proxy),
            collect_stats=int(collect_stats),
        )
        return Stats.from_json(self._core.launch(self._handle, kernel, config, block_bytes, rows))


def load(ptx: str | bytes | Path) -> Module:
    """Loads PTX text, or a file if given a Path.

    Raises:
        ParseError, UnsupportedInstruction: see Module.
        OSError: the file cannot be read.
    """
    return Module(_text(ptx))


def parse(ptx: str | bytes | Path) -> Module:
    """Like load, but collects unsupported instructions in `Module.unsupported` instead of raising."""
    return Module(_text(ptx), allow_unsupported=True)


def _text(ptx: str | bytes | Path) -> str | bytes:
    if isinstance(ptx, Path):
        return ptx.read_bytes()
    if isinstance(ptx, str) and ptx.endswith(".ptx") and "\n" not in ptx:
        raise ParseError(
            f"load PTX: got the file name {ptx!r} as text; allowed: PTX text or a pathlib.Path. Pass Path({ptx!r}).",
            {"kind": "parse"},
        )
    return ptx


def _entry(item: Mapping[str, Any]) -> Entry:
    def extents(key: str) -> tuple[int, ...] | None:
        values = tuple(item.get(key) or ())
        return values if any(values) else None

    return Entry(
        name=item["name"],
        params=tuple(item["params"]),
        static_smem=int(item.get("static_smem", 0)),
        reqntid=extents("reqntid"),
        maxntid=extents("maxntid"),
        registers=dict(item.get("registers", {})),
        instructions=int(item.get("instructions", 0)),
    )


def _extents(kernel: str, name: str, value: int | Sequence[int]) -> tuple[int, int, int]:
    values = (value,) if isinstance(value, int) else tuple(value)
    if not 1 <= len(values) <= 3 or not all(isinstance(v, int) and 1 <= v < 1 << 32 for v in values):
        raise LaunchError(
            f"launch {kernel}: got {name} {value!r}; allowed: one to three integers >= 1. Correct {name}.",
            {"kind": "launch"},
        )
    x, y, z = (*values, 1, 1)[:3]
    return x, y, z


def _unsigned(kernel: str, name: str, value: int, bits: int) -> int:
    if not 0 <= value < 1 << bits:
        raise LaunchError(
            f"launch {kernel}: got {name} {value}; allowed: 0 to 2^{bits} - 1. Correct {name}.", {"kind": "launch"}
        )
    return value


def _choice(kernel: str, name: str, value: str, allowed: Mapping[str, int]) -> int:
    if value not in allowed:
        raise LaunchError(
            f"launch {kernel}: got {name} {value!r}; allowed: {', '.join(allowed)}. Correct {name}.", {"kind": "launch"}
        )
    return allowed[value]
