# SPDX-License-Identifier: Apache-2.0
"""Exceptions of the simulator: one class per kind of error that the core reports, with the report's facts as fields.

Responsible for turning the core's error JSON into an exception. Not responsible for wording: the core writes messages.
"""

from __future__ import annotations

import json
from typing import Any


class PtxSimError(RuntimeError):
    """A module that does not load, or a launch that failed.

    Attributes:
        kind: the core's word for the failure ("memory", "deadlock", ...).
        line: PTX line number, counted from 1; None if the failure belongs to no line.
        cta: (x, y, z) of the failing CTA, None outside a launch.
        thread: linear thread index inside the CTA, None outside a launch.
        address: the address that was accessed, None if the failure is not about memory.
        nearest: the allocation nearest to `address`, as text, None if unknown.
        details: everything that the core reported, as a dict.
    """

    def __init__(self, message: str, details: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.details: dict[str, Any] = dict(details or {})
        self.message = message
        self.kind: str = str(self.details.get("kind", "error"))
        self.line: int | None = _positive(self.details.get("line"))
        cta = self.details.get("cta")
        self.cta: tuple[int, ...] | None = tuple(cta) if cta is not None else None
        self.thread: int | None = self.details.get("thread")
        self.address: int | None = self.details.get("address")
        self.nearest: str | None = self.details.get("nearest")


class ParseError(PtxSimError):
    """Text that is not PTX of a supported version; `line` says where."""


class UnsupportedInstruction(PtxSimError):
    """An instruction or modifier that the simulator does not implement. Nothing is ever skipped or approximated."""


class LaunchError(PtxSimError):
    """A launch that the driver would refuse: too many threads, too much shared memory, unknown kernel, bad args."""


class MemoryAccessError(PtxSimError):
    """An access outside every allocation of the launch, or a write to a read-only one."""


class UninitializedRead(PtxSimError):
    """A read of shared memory that nothing has written (yet: an unfinished cp.async has not)."""


class MisalignedAccess(PtxSimError):
    """An address that is not a multiple of the access's size."""


class Deadlock(PtxSimError):
    """No warp can run any more; the message lists each warp, its line and what it waits for."""


class StepBudgetExceeded(PtxSimError):
    """The launch executed more warp instructions than its step budget."""


class RaceError(PtxSimError):
    """Two accesses that the PTX memory model does not order."""


class ProxyError(RaceError):
    """Shared memory written through the generic proxy and read through the async proxy (wgmma, a bulk store) without
    fence.proxy.async between the two."""


class WgmmaError(RaceError):
    """Registers of an in-flight wgmma touched, or one that wgmma.fence should have ordered, or no wait at all."""


class MbarrierError(PtxSimError):
    """An mbarrier that does not exist, gets more arrivals than its count, or is overwritten."""


class TrapError(PtxSimError):
    """The kernel executed `trap` (a failed device-side assertion)."""


_BY_KIND: dict[str, type[PtxSimError]] = {
    "parse": ParseError,
    "unsupported": UnsupportedInstruction,
    "launch": LaunchError,
    "memory": MemoryAccessError,
    "uninitialized": UninitializedRead,
    "misaligned": MisalignedAccess,
    "deadlock": Deadlock,
    "budget": StepBudgetExceeded,
    "race": RaceError,
    "proxy": ProxyError,
    "wgmma": WgmmaError,
    "mbarrier": MbarrierError,
    "trap": TrapError,
}


def from_json(text: str) -> PtxSimError:
    """The exception for one error report of the core; an unknown kind gives a plain PtxSimError."""
    details = json.loads(text)
    return _BY_KIND.get(details.get("kind", ""), PtxSimError)(str(details.get("message", text)), details)


def _positive(value: object) -> int | None:
    return value if isinstance(value, int) and value > 0 else None
