# SPDX-License-Identifier: Apache-2.0
"""Statistics of one launch as a frozen value: exact counts, not estimates. Not responsible for counting: the core does.

docs/ptxsim.md defines every field.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stats:
    """What one launch executed and moved."""

    warp_instructions: int = 0
    """Instructions issued, counted once per warp."""
    thread_instructions: int = 0
    """Instructions times the lanes that were active and predicated on."""
    by_class: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """Warp instructions by class: alu, fp, mma, ldmatrix, ld_global, ..., barrier."""
    tensor_flops: int = 0
    """Floating-point operations of mma instructions: 2 * m * n * k each."""
    mufu_ops: int = 0
    """Lane operations of ex2, lg2, rcp, rsqrt, sqrt.approx, sin, cos and tanh."""
    global_bytes_read: int = 0
    """Bytes that active lanes asked for in global memory, cp.async included, zero-filled bytes not."""
    global_bytes_written: int = 0
    """Bytes that active lanes wrote to global memory."""
    global_sectors_read: int = 0
    """Distinct 32-byte sectors per instruction, summed."""
    global_sectors_written: int = 0
    """Distinct 32-byte sectors per instruction, summed."""
    shared_wavefronts: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """Passes through shared memory by kind: ld, st, ldmatrix, stmatrix, cp_async."""
    shared_conflicts: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """Wavefronts beyond the fewest that the instruction could need."""
    tma_bytes_read: int = 0
    """Global bytes that bulk and tensor copies read, parts out of bounds not counted, a multicast once."""
    tma_bytes_written: int = 0
    """Global bytes that bulk and tensor stores and reductions wrote."""
    barrier_waits: int = 0
    """Warp arrivals at a barrier that had to wait."""
    divergent_branches: int = 0
    """Branches at which the active lanes of a warp parted."""
    ctas: int = 0
    """CTAs executed."""
    seconds: float = 0.0
    """Wall-clock seconds of the simulation."""
    extra: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Counters of the core that have no field here."""

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Stats:
        """Stats from the core's report; keys without a field go to `extra`."""
        names = {field.name for field in dataclasses.fields(cls)} - {"extra"}
        known = {key: value for key, value in values.items() if key in names}
        return cls(**known, extra={key: value for key, value in values.items() if key not in names})

    @classmethod
    def from_json(cls, text: str) -> Stats:
        """Stats from the core's JSON."""
        return cls.from_dict(json.loads(text))

    def to_dict(self) -> dict[str, Any]:
        """Plain dict, ready for json.dumps; the keys of `extra` are merged in."""
        values = dataclasses.asdict(self)
        return {**values.pop("extra"), **values}

    def __add__(self, other: Stats) -> Stats:
        """Sum of two launches, field by field."""
        return Stats.from_dict(_add(self.to_dict(), other.to_dict()))

    def rows(self) -> list[tuple[str, str]]:
        """(name, value) pairs in reading order; nested counters become name.key, zero entries of those are left out."""
        rows = []
        for name, value in self.to_dict().items():
            if isinstance(value, Mapping):
                rows += [(f"{name}.{key}", _number(item)) for key, item in value.items() if item]
            else:
                rows.append((name, _number(value)))
        return rows

    def table(self) -> str:
        """A plain two-column table."""
        rows = self.rows()
        width = max(len(name) for name, _ in rows)
        value_width = max(len(value) for _, value in rows)
        return "\n".join(f"{name:<{width}}  {value:>{value_width}}" for name, value in rows)

    def __rich__(self) -> Any:
        """A rich table, so that `rich.print(stats)` reads well."""
        from rich.table import Table

        table = Table("statistic", "value")
        table.columns[1].justify = "right"
        for row in self.rows():
            table.add_row(*row)
        return table


def _number(value: Any) -> str:
    return f"{value:.6f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)


def _add(left: Mapping[str, Any], right: Mapping[str, Any]) -> dict[str, Any]:
    total: dict[str, Any] = {}
    for key in [*left, *(key for key in right if key not in left)]:
        a, b = left.get(key), right.get(key)
        if isinstance(a, Mapping) or isinstance(b, Mapping):
            total[key] = _add(a or {}, b or {})
        elif isinstance(a, (int, float)) and isinstance(b, (int, float)):
            total[key] = a + b
        else:
            total[key] = a if b is None else b
    return total
