# SPDX-License-Identifier: Apache-2.0
"""Named kernel sets, expanded once per target, in a stable order and without duplicates.

Not responsible for building them (build.py) or for what a dispatch miss asks for (dispatch.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from itertools import product
from typing import Any

from attnsmith.codegen.errors import SpecError
from attnsmith.codegen.families import (
    DTYPES,
    EQUAL_PAIRS_SM90,
    HEAD_DIMS,
    MLA_PAIR,
    WIDE_V_PAIRS_SM90,
    round_head_dim,
    serving_head_dims,
)
from attnsmith.codegen.resources import target_limits
from attnsmith.codegen.rules import check
from attnsmith.codegen.spec import Arch, DType, KernelSpec, Mask, ProblemKey, TileConfig
from attnsmith.codegen.tiles import default_tiles

KERNEL_SETS: dict[str, str] = {
    "minimal": "fp16 and bf16, head_dim 64 and 128, full and causal; the best tile of each",
    "default": "every head_dim that has a kernel, full and causal, with every default tile",
    "full": "default, and for each problem the kernels that also serve other head dims, packed GQA or column-major V",
}
"""Set name -> what is in it."""

MINIMAL_DTYPES, MINIMAL_HEAD_DIMS = (DType.FP16, DType.BF16), (64, 128)


def family_of(target: str) -> Arch:
    """The kernel family that a target is built with."""
    return target_limits(target).archs[0]


def default_pairs(arch: Arch, dtype: DType) -> tuple[tuple[int, int], ...]:
    """(head_dim, head_dim_v) of the default set."""
    if arch is Arch.SM80:
        return tuple((head_dim, head_dim) for head_dim in HEAD_DIMS)
    return EQUAL_PAIRS_SM90 if dtype.is_fp8 else (*EQUAL_PAIRS_SM90, MLA_PAIR)


def problem_keys(target: str, *, dtypes: Iterable[DType] | None = None) -> Iterator[ProblemKey]:
    """Every problem of the default set, by head dims, then dtype, then mask."""
    arch = family_of(target)
    pairs = {dtype: default_pairs(arch, dtype) for dtype in dtypes or DTYPES[arch]}
    ordered = dict.fromkeys(pair for of_dtype in pairs.values() for pair in of_dtype)
    for (head_dim, head_dim_v), dtype, mask in product(ordered, pairs, Mask):
        if (head_dim, head_dim_v) in pairs[dtype]:
            yield ProblemKey(arch=arch, dtype=dtype, head_dim=head_dim, head_dim_v=head_dim_v, mask=mask)


def _best(key: ProblemKey, target: str) -> KernelSpec:
    return KernelSpec(key=key, tile=default_tiles(key, target)[0].tile)


def _is_minimal(key: ProblemKey) -> bool:
    return key.dtype in MINIMAL_DTYPES and key.head_dim == key.head_dim_v and key.head_dim in MINIMAL_HEAD_DIMS


def _variants(key: ProblemKey) -> Iterator[ProblemKey]:
    """What the full set adds for a problem of the default set."""
    if key.arch is Arch.SM80:
        yield replace(key, pads_head_dim=True)
        return
    yield replace(key, packs_gqa=True)
    if key.dtype.is_fp8:
        yield replace(key, v_is_col_major=True)
    elif key.head_dim == key.head_dim_v == WIDE_V_PAIRS_SM90[0][0]:
        yield from (replace(key, head_dim_v=head_dim_v) for _, head_dim_v in WIDE_V_PAIRS_SM90)


def _expand(name: str, target: str) -> Iterator[KernelSpec]:
    keys = tuple(problem_keys(target))
    if name == "minimal":
        yield from (_best(key, target) for key in keys if _is_minimal(key))
        return
    for key in keys:
        yield from (KernelSpec(key=key, tile=row.tile) for row in default_tiles(key, target))
    if name == "full":
        yield from (_best(variant, target) for key in keys for variant in _variants(key))


@cache
def kernel_set(name: str, target: str) -> tuple[KernelSpec, ...]:
    """The specs of set `name` for `target`; no two are equal, and every one is legal (a unit test checks).

    Raises:
        SpecError: an unknown set or target.
    """
    if name not in KERNEL_SETS:
        raise SpecError(
            asked=f"expand kernel set {name}",
            got=repr(name),
            allowed=", ".join(KERNEL_SETS),
            do="Pass one of these sets, or single kernels by --head-dim, --dtype and --mask.",
        )
    return tuple(dict.fromkeys(_expand(name, target)))


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Which kernels of a target a user asks for; None or empty means no restriction."""

    target: str
    """Compile target."""
    set_name: str | None = None
    """Kernel set to choose from; None: the default set, or any problem that the other fields name."""
    dtypes: Sequence[DType] = ()
    """Element types."""
    head_dims: Sequence[int] = ()
    """Head dims of q and k. One without an own kernel selects the next larger kernel, zero-filled."""
    head_dims_v: Sequence[int] = ()
    """Head dims of v; empty: the same as q and k."""
    masks: Sequence[Mask] = ()
    """Masks."""
    tile: Mapping[str, Any] | None = None
    """TileConfig fields to set. Of a named set it selects; else it changes each problem's best tile."""
    key: Mapping[str, Any] | None = None
    """Of ProblemKey's fields, KEY_OPTIONS to set. Of a named set it selects; else it changes each problem."""

    def to_specs(self) -> tuple[KernelSpec, ...]:
        """The selected specs, all legal, without duplicates.

        Raises:
            SpecError: an unknown set, target or head dim, an illegal tile, or a selection that nothing matches.
        """
        specs = self._from_set(self.set_name) if self.set_name else self._from_problems()
        selected = tuple(dict.fromkeys(specs))
        for spec in selected:
            check(spec, self.target)
        if not selected:
            raise SpecError(
                asked=f"select kernels from set {self.set_name} for {self.target}",
                got="no kernel that matches every option",
                allowed="what `attnsmith list` shows",
                do="Leave an option out, or leave --set out to select any problem.",
            )
        return selected

    def _from_set(self, name: str) -> Iterator[KernelSpec]:
        for spec in kernel_set(name, self.target):
            key = spec.key
            if (
                (not self.dtypes or key.dtype in self.dtypes)
                and (not self.head_dims or key.head_dim in self.head_dims)
                and (not self.head_dims_v or key.head_dim_v in self.head_dims_v)
                and (not self.masks or key.mask in self.masks)
                and all(getattr(spec.tile, name) == value for name, value in (self.tile or {}).items())
                and all(getattr(key, name) == value for name, value in (self.key or {}).items())
            ):
                yield spec

    def _from_problems(self) -> Iterator[KernelSpec]:
        for problem in self._served() if self.head_dims or self.head_dims_v else self._of_default_set():
            key = replace(problem, **self.key or {})
            yield from (KernelSpec(key=key, tile=tile) for tile in self._tiles(key))

    def _of_default_set(self) -> Iterator[ProblemKey]:
        keys = problem_keys(self.target, dtypes=self.dtypes or None)
        return (key for key in keys if not self.masks or key.mask in self.masks)

    def _served(self) -> Iterator[ProblemKey]:
        """What serves each named head dim."""
        arch = family_of(self.target)
        for head_dim, dtype, mask in product(
            self.head_dims or HEAD_DIMS, self.dtypes or DTYPES[arch], self.masks or tuple(Mask)
        ):
            for head_dim_v in self.head_dims_v or (head_dim,):
                yield serving_key(arch=arch, dtype=dtype, head_dim=head_dim, head_dim_v=head_dim_v, mask=mask)

    def _tiles(self, key: ProblemKey) -> Iterator[TileConfig]:
        rows = default_tiles(key, self.target)
        if self.tile:
            yield replace(rows[0].tile, **self.tile)
        else:
            yield from (row.tile for row in rows)


KEY_OPTIONS = ("out_dtype", "v_is_col_major", "packs_gqa")
"""Names that Selection.key may set."""

TILE_FIELDS = tuple(field.name for field in fields(TileConfig))
"""Names that Selection.tile may set."""


def serving_key(
    *,
    arch: Arch,
    dtype: DType,
    head_dim: int,
    head_dim_v: int,
    mask: Mask,
    out_dtype: DType | None = None,
    v_is_col_major: bool = False,
    packs_gqa: bool = False,
) -> ProblemKey:
    """The best key for head dims in 1..256: on SM80 the exact one where a kernel is built for both, else the one that
    pads; on SM90 the smallest pair that covers both. SM80 kernels do not pack: there `packs_gqa` asks for nothing."""
    pair = serving_head_dims(arch, dtype, head_dim, head_dim_v)
    return ProblemKey(
        arch=arch,
        dtype=dtype,
        head_dim=pair[0],
        head_dim_v=pair[1],
        mask=mask,
        pads_head_dim=arch is Arch.SM80 and pair != (round_head_dim(head_dim), round_head_dim(head_dim_v)),
        out_dtype=out_dtype,
        v_is_col_major=v_is_col_major,
        packs_gqa=packs_gqa and arch is Arch.SM90,
    )
