# SPDX-License-Identifier: Apache-2.0
"""From kernels to the dispatch table: packed keys (one table for Python and C++), the order of candidates, manifests.

Not responsible for the run-time table itself (bindings/csrc) or for building a missing kernel (build.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from attnsmith.codegen.families import (
    DTYPES,
    HEAD_DIM_UNIT,
    HEAD_DIMS,
    MAX_HEAD_DIM,
    head_dim_bucket,
    head_dim_pairs,
    round_head_dim,
    serving_head_dims,
)
from attnsmith.codegen.registry import family_of, serving_key
from attnsmith.codegen.render import render_template
from attnsmith.codegen.resources import num_threads, occupancy, register_estimate, smem_bytes
from attnsmith.codegen.rules import check, is_legal
from attnsmith.codegen.spec import Arch, DType, KernelSpec, Mask, Op, ProblemKey
from attnsmith.codegen.tiles import TileRow, default_tiles, order_for_seqlen

MANIFEST_VERSION = 1

__all__ = [
    "FIELDS",
    "MAX_HEAD_DIM",
    "KeyField",
    "candidate_keys",
    "candidate_specs",
    "choose",
    "entry",
    "head_dim_bucket",
    "manifest",
    "pack_key",
    "render_dispatch_header",
    "round_head_dim",
    "serving_head_dims",
    "spec_for",
    "unpack_key",
]


@dataclass(frozen=True, kw_only=True)
class KeyField:
    """One field of the packed key."""

    name: str
    """Field of ProblemKey."""
    bits: int
    """Width in the packed key."""
    enum: type[Enum] | None = None
    """Type of an enum field; None for a number or, of one bit, a flag."""
    values: tuple[tuple[str, int], ...] = ()
    """Value name -> code, for an enum."""
    unit: int = 1
    """A number is stored divided by this."""

    def code(self, value: object) -> int:
        """The stored code of a ProblemKey field's value; ValueError when it has none."""
        if isinstance(value, Enum):
            value = value.value
        if self.values:
            codes: dict[object, int] = dict(self.values)
            return codes[value]
        if not isinstance(value, int) or value < 0 or value % self.unit or value // self.unit >= 1 << self.bits:
            allowed = f"a multiple of {self.unit} that fits {self.bits} bits"
            raise ValueError(f"{self.name} {value!r} cannot be packed: {allowed}")
        return int(value) // self.unit


_DTYPE_CODES = ((DType.FP16.value, 1), (DType.BF16.value, 2), (DType.E4M3.value, 3), (DType.E5M2.value, 4))

FIELDS: tuple[KeyField, ...] = (
    KeyField(name="op", bits=4, enum=Op, values=((Op.FWD.value, 1),)),
    KeyField(name="arch", bits=4, enum=Arch, values=((Arch.SM80.value, 1), (Arch.SM90.value, 2))),
    KeyField(name="dtype", bits=4, enum=DType, values=_DTYPE_CODES),
    KeyField(name="head_dim", bits=8, unit=HEAD_DIM_UNIT),
    KeyField(name="head_dim_v", bits=8, unit=HEAD_DIM_UNIT),
    KeyField(name="mask", bits=4, enum=Mask, values=((Mask.FULL.value, 1), (Mask.CAUSAL.value, 2))),
    KeyField(name="pads_head_dim", bits=1),
    KeyField(name="out_dtype", bits=4, enum=DType, values=_DTYPE_CODES),
    KeyField(name="v_is_col_major", bits=1),
    KeyField(name="packs_gqa", bits=1),
)
"""The packed key, lowest bits first. Append only: a code that was published keeps its meaning. Enum codes start at 1,
so that a packed key is never 0."""


def field_shifts() -> dict[str, int]:
    """Field name -> position of its lowest bit."""
    shifts: dict[str, int] = {}
    position = 0
    for field in FIELDS:
        shifts[field.name] = position
        position += field.bits
    if position > 64:
        raise ValueError(f"packed key of {position} bits: 64 fit")
    return shifts


def pack_key(key: ProblemKey) -> int:
    """The key as one uint64; injective, equal to attnsmith::pack_key of the rendered header."""
    shifts = field_shifts()
    return sum(field.code(getattr(key, field.name)) << shifts[field.name] for field in FIELDS)


def unpack_key(packed: int) -> ProblemKey:
    """The inverse of `pack_key`; ValueError for a number that no key packs to."""
    shifts = field_shifts()
    values: dict[str, Any] = {}
    for field in FIELDS:
        code = packed >> shifts[field.name] & ((1 << field.bits) - 1)
        if field.enum is not None:
            names = {number: name for name, number in field.values}
            if code not in names:
                raise ValueError(f"packed key {packed:#x}: {field.name} has no value of code {code}")
            values[field.name] = field.enum(names[code])
        else:
            values[field.name] = bool(code) if field.bits == 1 else code * field.unit
    key = ProblemKey(**values)
    if pack_key(key) != packed:
        raise ValueError(f"packed key {packed:#x} has bits beyond its fields")
    return key


def _head_dim_tables() -> list[dict[str, Any]]:
    """One row per family and list of head-dim pairs, with the element types that share the list."""
    tables: dict[tuple[Arch, tuple[tuple[int, int], ...]], list[str]] = {}
    for arch in Arch:
        for dtype in DTYPES[arch]:
            tables.setdefault((arch, head_dim_pairs(arch, dtype)), []).append(dtype.value)
    return [{"arch": arch.value, "dtypes": dtypes, "pairs": pairs} for (arch, pairs), dtypes in tables.items()]


def render_dispatch_header() -> str:
    """C++17 text of dispatch_table.inc: the enums, the key struct and constexpr pack_key, generated from FIELDS.

    It has no dependency but <cstdint>, so that the launcher and the registration lines of a kernel can include it.
    """
    shifts = field_shifts()
    fields = [
        {
            "name": field.name,
            "type": field.enum.__name__ if field.enum else "bool" if field.bits == 1 else "int",
            "bits": field.bits,
            "shift": shifts[field.name],
            "unit": field.unit,
        }
        for field in FIELDS
    ]
    enums = {field.enum.__name__: [{"name": name, "code": code} for name, code in field.values]
             for field in FIELDS if field.enum}  # fmt: skip
    context = {
        "fields": fields,
        "enums": enums,
        "head_dims": list(HEAD_DIMS),
        "head_dim_unit": HEAD_DIM_UNIT,
        "families": _head_dim_tables(),
    }
    return render_template("dispatch_table.inc.j2", context)


def candidate_keys(
    *,
    dtype: DType,
    head_dim: int,
    mask: Mask,
    target: str,
    head_dim_v: int | None = None,
    op: Op = Op.FWD,
    out_dtype: DType | None = None,
    v_is_col_major: bool = False,
    packs_gqa: bool = False,
) -> tuple[ProblemKey, ...]:
    """The keys that serve a problem, best first.

    SM80: the exact one when it exists, then the one that pads. SM90: the packed one when asked, then the plain one,
    which computes the same. `head_dim` and `head_dim_v` are as given by the caller (1..256), rounded up here.
    """
    best = serving_key(
        arch=family_of(target),
        dtype=dtype,
        head_dim=head_dim,
        head_dim_v=head_dim if head_dim_v is None else head_dim_v,
        mask=mask,
        out_dtype=out_dtype,
        v_is_col_major=v_is_col_major,
        packs_gqa=packs_gqa,
    )
    best = replace(best, op=op)
    if best.packs_gqa:
        return (best, replace(best, packs_gqa=False))
    if best.arch is Arch.SM90 or best.pads_head_dim:
        return (best,)
    return (best, replace(best, pads_head_dim=True))


def candidate_specs(
    *,
    dtype: DType,
    head_dim: int,
    mask: Mask,
    target: str,
    head_dim_v: int | None = None,
    op: Op = Op.FWD,
    seqlen_q: int | None = None,
    out_dtype: DType | None = None,
    v_is_col_major: bool = False,
    packs_gqa: bool = False,
) -> tuple[KernelSpec, ...]:
    """The specs that dispatch would accept for a problem, best first; the first is what a miss builds.

    Every returned spec is legal on `target`.

    Raises:
        SpecError: head dims outside 1..256, an unknown target, or a dtype that the target's tensor cores lack.
    """
    keys = candidate_keys(
        dtype=dtype,
        head_dim=head_dim,
        head_dim_v=head_dim_v,
        mask=mask,
        target=target,
        op=op,
        out_dtype=out_dtype,
        v_is_col_major=v_is_col_major,
        packs_gqa=packs_gqa,
    )
    specs = [
        KernelSpec(key=key, tile=row.tile)
        for key in keys
        for row in order_for_seqlen(default_tiles(key, target), seqlen_q)
    ]
    legal = tuple(spec for spec in specs if is_legal(spec, target))
    if not legal:
        check(specs[0], target)
    return legal


def spec_for(**problem: Any) -> KernelSpec:
    """The best of `candidate_specs`, with its arguments: what a dispatch miss builds."""
    return candidate_specs(**problem)[0]


def _row_of(spec: KernelSpec, target: str) -> tuple[int, TileRow | None]:
    rows = default_tiles(spec.key, target)
    for priority, row in enumerate(rows):
        if row.tile == spec.tile:
            return priority, row
    return len(rows), None


def entry(spec: KernelSpec, target: str) -> dict[str, Any]:
    """One dispatch entry, JSON-ready: every spec field, the packed key, launch metadata, and when to choose it.

    Among entries of one packed key, dispatch takes those whose `max_seqlen_q` (None: no limit) is at least the
    problem's seqlen_q, the tightest limit first, then the lowest `priority`.
    """
    priority, row = _row_of(spec, target)
    return {
        **spec.to_dict(),
        "target": target,
        "packed_key": pack_key(spec.key),
        "smem_bytes": smem_bytes(spec),
        "num_threads": num_threads(spec),
        "ctas_per_sm": max(1, occupancy(spec, target)),
        "register_estimate": register_estimate(spec),
        "priority": priority,
        "max_seqlen_q": row.max_seqlen_q if row else None,
        "reason": row.reason if row else "not a default tile",
    }


def choose(entries: Sequence[dict[str, Any]], seqlen_q: int) -> list[dict[str, Any]]:
    """`entries` of one packed key in the order in which dispatch tries them for `seqlen_q` (see `entry`).

    Entries whose limit does not hold come last: they compute the right result and serve when nothing else is built.
    """

    def rank(row: dict[str, Any]) -> tuple[int, int, int]:
        limit = row["max_seqlen_q"]
        if limit is None:
            return (1, 0, row["priority"])
        return (0 if seqlen_q <= limit else 2, limit, row["priority"])

    return sorted(entries, key=rank)


def manifest(specs: Iterable[KernelSpec], target: str) -> dict[str, Any]:
    """manifest.json of a kernel set for one target: what is in it and how dispatch orders it."""
    return {
        "manifest_version": MANIFEST_VERSION,
        "target": target,
        "key_fields": [{"name": f.name, "bits": f.bits, "unit": f.unit, "values": dict(f.values)} for f in FIELDS],
        "kernels": [entry(spec, target) for spec in specs],
    }
