# SPDX-License-Identifier: Apache-2.0
"""Named kernel sets, expanded once per target, in a stable order and without duplicates.

Not responsible for building them (build.py) or for what a dispatch miss asks for (dispatch.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from itertools import product

from attnsmith.codegen.errors import SpecError
from attnsmith.codegen.resources import target_limits
from attnsmith.codegen.rules import DTYPES, HEAD_DIM_UNIT, HEAD_DIMS, check
from attnsmith.codegen.spec import Arch, DType, KernelSpec, Mask, ProblemKey, TileConfig
from attnsmith.codegen.tiles import default_tiles

KERNEL_SETS: dict[str, str] = {
    "minimal": "fp16 and bf16, head_dim 64 and 128, full and causal; the best tile of each",
    "default": "every head_dim that has a kernel, full and causal, with every default tile",
    "full": "default, and for each problem the kernel that also serves smaller head dims",
}
"""Set name -> what is in it."""


def family_of(target: str) -> Arch:
    """The kernel family that a target is built with."""
    return target_limits(target).archs[0]


def problem_keys(
    target: str, *, head_dims: Iterable[int] = HEAD_DIMS, dtypes: Iterable[DType] | None = None
) -> Iterator[ProblemKey]:
    """Every exact problem (head_dim_v == head_dim) of the target's family."""
    arch = family_of(target)
    for head_dim, dtype, mask in product(head_dims, dtypes or DTYPES[arch], Mask):
        yield ProblemKey(arch=arch, dtype=dtype, head_dim=head_dim, head_dim_v=head_dim, mask=mask)


def _best(key: ProblemKey, target: str) -> KernelSpec:
    return KernelSpec(key=key, tile=default_tiles(key, target)[0].tile)


def _expand(name: str, target: str) -> Iterator[KernelSpec]:
    if name == "minimal":
        yield from (_best(key, target) for key in problem_keys(target, head_dims=(64, 128)))
        return
    for key in problem_keys(target):
        yield from (KernelSpec(key=key, tile=row.tile) for row in default_tiles(key, target))
    if name == "full":
        yield from (_best(replace(key, pads_head_dim=True), target) for key in problem_keys(target))


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
    tile: Mapping[str, int] | None = None
    """TileConfig fields to set. Of a named set it selects; else it changes each problem's best tile."""

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
            ):
                yield spec

    def _from_problems(self) -> Iterator[KernelSpec]:
        arch = family_of(self.target)
        for head_dim, dtype, mask in product(
            self.head_dims or HEAD_DIMS, self.dtypes or DTYPES[arch], self.masks or tuple(Mask)
        ):
            for head_dim_v in self.head_dims_v or (head_dim,):
                key = serving_key(arch=arch, dtype=dtype, head_dim=head_dim, head_dim_v=head_dim_v, mask=mask)
                yield from (KernelSpec(key=key, tile=tile) for tile in self._tiles(key))

    def _tiles(self, key: ProblemKey) -> Iterator[TileConfig]:
        rows = default_tiles(key, self.target)
        if self.tile:
            yield replace(rows[0].tile, **self.tile)
        else:
            yield from (row.tile for row in rows)


TILE_FIELDS = tuple(field.name for field in fields(TileConfig))
"""Names that Selection.tile may set."""


def head_dim_bucket(head_dim: int) -> int:
    """The smallest head dim with a kernel that is at least `head_dim`; SpecError outside 1..256."""
    for bucket in HEAD_DIMS:
        if 1 <= head_dim <= bucket:
            return bucket
    raise SpecError(
        asked=f"choose a kernel for head_dim {head_dim}",
        got=f"head_dim {head_dim}",
        allowed=f"1 to {HEAD_DIMS[-1]}",
        do=f"Split or project the heads to at most {HEAD_DIMS[-1]}.",
    )


def serving_key(*, arch: Arch, dtype: DType, head_dim: int, head_dim_v: int, mask: Mask) -> ProblemKey:
    """The best key for head dims in 1..256: the exact one where a kernel is built for both, else the one that pads."""
    buckets = (head_dim_bucket(head_dim), head_dim_bucket(head_dim_v))
    rounded = (round_head_dim(head_dim), round_head_dim(head_dim_v))
    return ProblemKey(
        arch=arch,
        dtype=dtype,
        head_dim=buckets[0],
        head_dim_v=buckets[1],
        mask=mask,
        pads_head_dim=buckets != rounded,
    )


def round_head_dim(head_dim: int) -> int:
    """`head_dim` rounded up to what a kernel can read: a multiple of HEAD_DIM_UNIT (the host pads by a copy)."""
    return -(-head_dim // HEAD_DIM_UNIT) * HEAD_DIM_UNIT
