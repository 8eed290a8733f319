# SPDX-License-Identifier: Apache-2.0
"""Default tiles of SM80 kernels as data: per class of target and head dim, each row with its reason.

Not responsible for legality (rules.py; a unit test checks every row) or for measured choices (tuned/*.json).
"""

from __future__ import annotations

from attnsmith.codegen.errors import SpecError
from attnsmith.codegen.families import HEAD_DIMS
from attnsmith.codegen.limits import target_limits
from attnsmith.codegen.spec import Mask, ProblemKey, TileConfig
from attnsmith.codegen.tile_row import SHORT_SEQLEN_Q, TileRow


def _row(
    block_m: int,
    block_n: int,
    num_warps: int,
    num_stages: int,
    reason: str,
    *,
    mask: Mask | None = None,
    short: bool = False,
) -> TileRow:
    tile = TileConfig(block_m=block_m, block_n=block_n, num_warps=num_warps, num_stages=num_stages)
    return TileRow(tile=tile, reason=reason, mask=mask, max_seqlen_q=SHORT_SEQLEN_Q if short else None)


BIG_SMEM, SMALL_SMEM = "163 KB or more", "99 KB"
"""Classes of target: A100 and Hopper against RTX 30/40, by shared memory per CTA."""

ROWS_SM80: dict[tuple[str, int], tuple[TileRow, ...]] = {
    (BIG_SMEM, 32): (
        _row(128, 128, 4, 1, "128 keys per softmax step; S 128 + O 32 registers bound residency, not the 24 KB"),
        _row(64, 128, 4, 1, "at most 64 queries: half the rows of the 128-row tile would be padding", short=True),
    ),
    (BIG_SMEM, 64): (
        _row(128, 128, 4, 1, "S 128 + O 64 registers: the widest S tile that 255 per thread can hold; 48 KB"),
        _row(128, 64, 4, 2, "same 48 KB as two stages of half the keys: the next K and V arrive one iteration earlier"),
        _row(64, 64, 4, 1, "at most 64 queries: no padded rows, and 24 KB keeps more CTAs resident", short=True),
    ),
    (BIG_SMEM, 96): (
        _row(128, 64, 4, 1, "S 64 + O 96 registers; 48 KB, 2 CTAs per SM hide each other's softmax"),
        _row(64, 64, 4, 2, "at most 64 queries: the second stage replaces the residency that few CTAs cannot give",
             short=True),
    ),
    (BIG_SMEM, 128): (
        _row(128, 64, 4, 1, "S 64 + O 128 registers: 4 warps cannot hold more; 64 KB, 2 CTAs per SM"),
        _row(128, 128, 8, 1, "8 warps halve S and O per thread, so twice the keys per K/V load; 96 KB, 1 CTA per SM"),
        _row(64, 64, 4, 2, "at most 64 queries: no padded rows, two stages in 80 KB, 2 CTAs per SM", short=True),
    ),
    (BIG_SMEM, 192): (
        _row(128, 64, 8, 1, "O alone is 192 registers with 4 warps, so 8 warps: S 32 + O 96; 96 KB"),
        _row(64, 64, 4, 1, "at most 64 queries: no padded rows; 72 KB, 2 CTAs per SM", short=True),
    ),
    (BIG_SMEM, 256): (
        _row(128, 64, 8, 1, "O is 128 registers with 8 warps, S 32; 128 KB, 1 CTA per SM"),
        _row(64, 64, 4, 1, "at most 64 queries: no padded rows; 96 KB", short=True),
    ),
    (SMALL_SMEM, 32): (
        _row(128, 128, 4, 1, "as on A100: registers, not the 24 KB, bound how many CTAs an SM holds"),
        _row(64, 128, 4, 1, "at most 64 queries: half the rows of the 128-row tile would be padding", short=True),
    ),
    (SMALL_SMEM, 64): (
        _row(128, 128, 4, 1, "S 128 + O 64 registers; 48 KB, 2 CTAs fit the 100 KB of an SM"),
        _row(64, 64, 4, 1, "at most 64 queries: no padded rows; 24 KB, 4 CTAs per SM", short=True),
    ),
    (SMALL_SMEM, 96): (
        _row(128, 64, 4, 1, "48 KB: exactly 2 CTAs in 100 KB"),
        _row(64, 64, 4, 1, "at most 64 queries: no padded rows; 36 KB, 2 CTAs per SM", short=True),
    ),
    (SMALL_SMEM, 128): (
        _row(128, 32, 4, 1, "32 keys keep Q, K and V at 48 KB, so 2 CTAs share an SM", mask=Mask.FULL),
        _row(64, 64, 4, 1, "at most 64 queries: no padded rows in the same 48 KB", mask=Mask.FULL, short=True),
        _row(64, 64, 4, 1, "a square tile wastes the least on the diagonal; 48 KB, 2 CTAs per SM", mask=Mask.CAUSAL),
        _row(128, 32, 4, 1, "fewer K/V loads per query than 64x64 in the same 48 KB", mask=Mask.CAUSAL),
    ),
    (SMALL_SMEM, 192): (
        _row(64, 64, 4, 1, "72 KB: the widest K/V tile beside 64 query rows"),
        _row(128, 64, 8, 1, "96 KB of 99: half the K/V loads per query, 1 CTA per SM"),
    ),
    (SMALL_SMEM, 256): (
        _row(64, 64, 4, 1, "96 KB of 99: the widest square tile"),
        _row(64, 32, 4, 1, "64 KB: less to load before the first MMA, for short key sequences"),
    ),
}  # fmt: skip


SPILLING: dict[str, frozenset[tuple[int, str]]] = {"sm_90": frozenset({(64, "128x128_w4_s1"), (128, "128x64_w4_s1")})}
"""Target -> (head_dim, tile) of rows left out there: ptxas spills these, of 192 accumulators a thread, for sm_90 alone
(docs/measurements/fwd-sm80-static.md)."""


def target_class(target: str) -> str:
    """Which class of rows serves `target`; SpecError for an unknown target."""
    return BIG_SMEM if target_limits(target).smem_per_block >= 163 * 1024 else SMALL_SMEM


def rows_sm80(key: ProblemKey, target: str) -> tuple[TileRow, ...]:
    """Every row for the key's head dims; SpecError where there is none, or for an unknown target."""
    head_dim = max(key.head_dim, key.head_dim_v)
    try:
        rows = ROWS_SM80[target_class(target), head_dim]
    except KeyError:
        raise SpecError(
            asked=f"choose a tile for head_dim {key.head_dim}, head_dim_v {key.head_dim_v} on {target}",
            got=f"head_dim {head_dim}",
            allowed=", ".join(str(value) for value in HEAD_DIMS),
            do="Use the next larger head_dim with pads_head_dim, or pass a tile.",
        ) from None
    return tuple(row for row in rows if (head_dim, row.tile.label) not in SPILLING.get(target, ()))
