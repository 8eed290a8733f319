# SPDX-License-Identifier: Apache-2.0
"""The simulated devices as frozen rows, read from the core so that there is one table. Not responsible for limits of
the generator: codegen/resources.py is."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from attnsmith.tools.ptxsim.binding import core
from attnsmith.tools.ptxsim.errors import LaunchError


@functools.lru_cache(maxsize=1)
def devices() -> Mapping[str, Mapping[str, Any]]:
    """Device name -> facts (compute capability, SM count, shared memory per block and per SM, registers, limits)."""
    table = core().devices()
    rows = table.get("devices", table) if isinstance(table, dict) else table
    if isinstance(rows, dict):
        return {name: {"name": name, **facts} for name, facts in rows.items()}
    return {row["name"]: dict(row) for row in rows}


def device(name: str) -> Mapping[str, Any]:
    """Facts of one device.

    Raises:
        LaunchError: no such device.
    """
    try:
        return devices()[name]
    except KeyError:
        known = ", ".join(devices())
        raise LaunchError(f"simulate on a device: got {name!r}; allowed: {known}. Pass one of these.") from None
