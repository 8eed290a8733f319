# SPDX-License-Identifier: Apache-2.0
"""Legality rules of the SM80 family alone: head dims one by one, MMA tiles per warp, and none of SM90's options."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields

from attnsmith.codegen.families import HEAD_DIMS
from attnsmith.codegen.rule import Problem, Rule, listed
from attnsmith.codegen.spec import Arch, KernelSpec, TileConfig

SWIZZLE_COLUMNS = 32
"""Columns of the narrowest shared-memory swizzle atom."""

MMA_M, MMA_N, MMA_K = 16, 8, 16
"""mma.sync m16n8k16 of 16-bit types: rows, columns and depth of one instruction."""

NUM_WARPS = (4, 8)
ROW_TILES_PER_WARP = (1, 2)
MAX_BLOCK_N = 256

SHARED_TILE_FIELDS = ("block_m", "block_n", "num_warps", "num_stages")
"""TileConfig fields that SM80 kernels have too. The others are SM90's, and SM80 specs leave them at their defaults."""


def odd_head_dims(spec: KernelSpec, unit: int) -> str:
    """The head dims that `unit` does not divide, named; empty when it divides both."""
    dims = (("head_dim", spec.key.head_dim), ("head_dim_v", spec.key.head_dim_v))
    return ", ".join(f"{name} {value}" for name, value in dims if value % unit or value < unit)


def _bad_head_dim(name: str) -> Callable[[KernelSpec, str], Problem]:
    def message(spec: KernelSpec, target: str) -> Problem:
        value = getattr(spec.key, name)
        bucket = next((head_dim for head_dim in HEAD_DIMS if head_dim >= value > 0), None)
        do = f"Use {bucket} with pads_head_dim." if bucket else f"Use at most {HEAD_DIMS[-1]}."
        return Problem(f"{name} {value}", f"kernels of {name} {listed(HEAD_DIMS)}", do)

    return message


def _legal_block_m(num_warps: int) -> tuple[int, ...]:
    return tuple(MMA_M * row_tiles * num_warps for row_tiles in ROW_TILES_PER_WARP)


def _sm90_options(spec: KernelSpec) -> list[str]:
    """The options of SM90 kernels that the spec sets, as `name value`."""
    own = [field for field in fields(TileConfig) if field.name not in SHARED_TILE_FIELDS]
    found = {field.name: getattr(spec.tile, field.name) for field in own}
    found = {field.name: found[field.name] for field in own if found[field.name] != field.default}
    found.update({name: True for name in ("packs_gqa", "v_is_col_major") if getattr(spec.key, name)})
    return [f"{name} {getattr(value, 'value', value)}" for name, value in found.items()]


RULES_SM80: tuple[Rule, ...] = (
    Rule(
        id="sm90-options",
        summary="an SM80 kernel sets no option that only SM90 kernels have",
        predicate=lambda spec, target: not _sm90_options(spec),
        message=lambda spec, target: Problem(
            ", ".join(_sm90_options(spec)),
            f"{listed(SHARED_TILE_FIELDS)} on SM80; the other options need SM90 (target sm_90a)",
            "Leave these options out, or build for sm_90a.",
        ),
        arch=Arch.SM80,
    ),
    Rule(
        id="head-dim-swizzle",
        summary="head dims are whole swizzle atoms of 32 or 64 columns, so that ldmatrix has no bank conflicts",
        predicate=lambda spec, target: not odd_head_dims(spec, SWIZZLE_COLUMNS),
        message=lambda spec, target: Problem(
            odd_head_dims(spec, SWIZZLE_COLUMNS),
            f"multiples of {SWIZZLE_COLUMNS} (a swizzle atom is 8 rows x 32 or 64 columns)",
            "Use the next larger kernel with pads_head_dim.",
        ),
        arch=Arch.SM80,
        needs=("head-dim-aligned",),
    ),
    Rule(
        id="head-dim-supported",
        summary="head_dim is one that kernels are built for",
        predicate=lambda spec, target: spec.key.head_dim in HEAD_DIMS,
        message=_bad_head_dim("head_dim"),
        arch=Arch.SM80,
    ),
    Rule(
        id="head-dim-v-supported",
        summary="head_dim_v is one that kernels are built for",
        predicate=lambda spec, target: spec.key.head_dim_v in HEAD_DIMS,
        message=_bad_head_dim("head_dim_v"),
        arch=Arch.SM80,
    ),
    Rule(
        id="block-m-covered",
        summary="each warp covers one or two MMA tiles of 16 query rows",
        predicate=lambda spec, target: spec.tile.block_m in _legal_block_m(spec.tile.num_warps),
        needs=("num-warps",),
        message=lambda spec, target: Problem(
            f"block_m {spec.tile.block_m} over {spec.tile.num_warps} warps",
            f"block_m {listed(_legal_block_m(spec.tile.num_warps))} with {spec.tile.num_warps} warps "
            f"(m{MMA_M}n{MMA_N}k{MMA_K}: {MMA_M} or {2 * MMA_M} rows per warp)",
            "Change block_m or num_warps.",
        ),
        arch=Arch.SM80,
    ),
    Rule(
        id="block-n-covered",
        summary="block_n is a multiple of the depth of the PV product's MMA",
        predicate=lambda spec, target: 0 < spec.tile.block_n <= MAX_BLOCK_N and spec.tile.block_n % MMA_K == 0,
        message=lambda spec, target: Problem(
            f"block_n {spec.tile.block_n}",
            f"multiples of {MMA_K} up to {MAX_BLOCK_N} (P is the k{MMA_K} operand of the PV product)",
            f"Round block_n to a multiple of {MMA_K}.",
        ),
        arch=Arch.SM80,
    ),
)
