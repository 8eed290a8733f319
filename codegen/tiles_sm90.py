# SPDX-License-Identifier: Apache-2.0
"""Default tiles of SM90 kernels as data: per element size, V's order and head dims, each row with its reason.

Where a reason counts registers, they are a consumer's (limit 240 with two consumer warpgroups, 232 where V is
transposed, 160 with three, 216 or 248 with one); bytes are shared memory (limit 232448). Not responsible for legality
(rules.py; a unit test checks every row) or for measured choices (tuned/*.json).
"""

from __future__ import annotations

from dataclasses import replace

from attnsmith.codegen.errors import SpecError
from attnsmith.codegen.families import head_dim_pairs
from attnsmith.codegen.spec import Mask, ProblemKey, Scheduler, TileConfig
from attnsmith.codegen.tile_row import SHORT_SEQLEN_Q, TileRow

NUM_STAGES = 2
"""Of every row: a stage is loaded while the other is read. Shared memory for a third goes into more keys instead."""


def _tile(block_m: int, block_n: int, p_in_smem: bool, exp2_fma_eighths: int = 0) -> TileConfig:
    """Everything that hides softmax behind the tensor cores: turns between warpgroups, and overlap within each."""
    num_warps = block_m // 16
    return TileConfig(
        block_m=block_m,
        block_n=block_n,
        num_warps=num_warps,
        num_stages=NUM_STAGES,
        is_ping_pong=num_warps > 4,
        overlaps_softmax=True,
        p_in_smem=p_in_smem,
        exp2_fma_eighths=exp2_fma_eighths,
    )


def _long(
    block_m: int,
    block_n: int,
    reason: str,
    *,
    mask: Mask | None = None,
    p_in_smem: bool = False,
    exp2_fma_eighths: int = 0,
) -> tuple[TileRow, ...]:
    """Persistent kernels: full tiles are alike and dealt in turn, causal ones are taken longest first."""
    tile = _tile(block_m, block_n, p_in_smem, exp2_fma_eighths)
    rows = {Mask.FULL: Scheduler.STATIC, Mask.CAUSAL: Scheduler.DYNAMIC}
    return tuple(
        TileRow(tile=replace(tile, scheduler=scheduler), reason=reason, mask=for_mask)
        for for_mask, scheduler in rows.items()
        if mask in (None, for_mask)
    )


def _short(block_n: int, reason: str) -> tuple[TileRow, ...]:
    """One consumer warpgroup, one CTA per tile."""
    tile = _tile(64, block_n, False)
    return (TileRow(tile=tile, reason=f"at most 64 queries: {reason}", max_seqlen_q=SHORT_SEQLEN_Q),)


ROWS_16_BIT: dict[tuple[int, int], tuple[TileRow, ...]] = {
    (64, 64): (
        *_long(192, 128, "three warpgroups share each K and V tile; S 64 + O 32 + P 32 registers are 156 of 160"),
        *_short(128, "73 KB, so 2 CTAs per SM take turns at the tensor cores"),
    ),
    (96, 96): (
        *_long(128, 192, "S 96 + O 48 + P 48 registers; 169 KB, whose traffic takes 83 % of the MMA's time",
               mask=Mask.FULL),
        *_long(128, 128, "a square tile has one masked block on an aligned diagonal; S 64 + O 48 + P 32; 121 KB",
               mask=Mask.CAUSAL),
        *_long(192, 144, "P through shared memory lets three warpgroups fit, but its traffic takes 111 % of the "
               "MMA's time: second choice; 217 KB", p_in_smem=True),
        *_short(128, "109 KB, 2 CTAs per SM"),
    ),
    (128, 128): (
        *_long(128, 192, "S 96 + O 64 + P 48 registers leave 4 of 240 to spare; 225 KB: fewest steps",
               mask=Mask.FULL),
        *_long(128, 128, "a square tile has one masked block on an aligned diagonal; S 64 + O 64 + P 32; 161 KB",
               mask=Mask.CAUSAL),
        *_short(96, "113 KB, the most keys with which 2 CTAs fit the 228 KB of an SM"),
    ),
    (192, 192): (
        *_long(128, 112, "217 KB: 128 keys would take 241; S 56 + O 96 + P 28 registers"),
        *_short(112, "the keys of the 128-row tile in 193 KB"),
    ),
    (192, 128): (
        *_long(128, 128, "V is narrower than K, so 128 keys fit: 209 KB; S 64 + O 64 + P 32 registers"),
        *_short(128, "the keys of the 128-row tile in 185 KB"),
    ),
    (256, 256): (
        *_long(128, 80, "225 KB of 227; O is 128 registers, S 40 + P 20 go beside it"),
        *_short(80, "O 128 + S 40 + P 20 registers fill the 216 of a single consumer warpgroup"),
    ),
    (64, 96): (
        *_long(128, 128, "S 64 + O 48 + P 32 registers: 172, more than three warpgroups have; 105 KB"),
        *_short(128, "93 KB, 2 CTAs per SM"),
    ),
    (64, 128): (
        *_long(128, 128, "S 64 + O 64 + P 32 registers; 129 KB"),
        *_short(128, "113 KB, 2 CTAs per SM"),
    ),
    (64, 192): (
        *_long(128, 128, "S 64 + O 96 + P 32 registers are 220 of 240; 177 KB"),
        *_short(96, "S 48 + O 96 + P 24 registers are 196 of 216"),
    ),
    (64, 256): (
        *_long(128, 96, "O is 128 registers, S 48 + P 24 beside it are 228 of 240; 185 KB"),
        *_short(80, "O 128 + S 40 + P 20 registers fill the 216 of a single consumer warpgroup"),
    ),
}  # fmt: skip

ROWS_8_BIT: dict[tuple[int, int], tuple[TileRow, ...]] = {
    (64, 64): (
        *_long(192, 160, "three warpgroups share each transposed V tile; S 80 + O 32 + P 20 fill their 160 registers; "
               "MUFU needs twice the MMA's 960 cycles, an eighth of exp2 as polynomial leaves 1746 issue slots",
               exp2_fma_eighths=1),
        *_short(128, "57 KB, 2 CTAs per SM; V's transposed rows of 128 keys are full"),
    ),
    (96, 96): (
        *_long(192, 128, "S 64 + O 48 + P 16 registers are 156 of 160; V's transposed rows of 128 keys are full; "
               "MUFU needs 1536 cycles, the MMA 1152: an eighth of exp2 as polynomial leaves 1437 issue slots",
               exp2_fma_eighths=1),
        *_short(128, "85 KB, 2 CTAs per SM"),
    ),
    (128, 128): (
        *_long(128, 224, "S 112 + O 64 + P 28 fill 232 registers; 209 KB: the fewest softmax steps and transposes"),
        *_short(128, "113 KB, 2 CTAs per SM"),
    ),
    (192, 192): (
        *_long(128, 128, "193 KB; 160 keys would take 265, because V's transposed rows hold whole spans of 128 keys"),
        *_short(128, "the keys of the 128-row tile in 169 KB"),
    ),
    (256, 256): (
        *_long(128, 96, "225 KB of 227; 128 keys would take 257 for V and its transposed copy"),
        *_short(96, "S 48 + O 128 + P 12 registers fill the 216 of a single consumer warpgroup"),
    ),
}  # fmt: skip

ROWS_8_BIT_COL_MAJOR: dict[tuple[int, int], tuple[TileRow, ...]] = {
    (64, 64): (
        *_long(192, 128, "V's boxes are 128 keys wide; three warpgroups share each, S 64 + O 32 + P 16 registers"),
        *_short(128, "41 KB, 2 CTAs per SM"),
    ),
    (96, 96): (
        *_long(192, 128, "V's boxes are 128 keys wide; S 64 + O 48 + P 16 registers are 156 of 160"),
        *_short(128, "61 KB, 2 CTAs per SM"),
    ),
    (128, 128): (
        *_long(128, 128, "V's boxes are 128 keys wide, and S of 256 keys would leave no registers for O; 97 KB"),
        *_short(128, "81 KB, 2 CTAs per SM"),
    ),
    (192, 192): (
        *_long(128, 128, "V's boxes are 128 keys wide; 145 KB"),
        *_short(128, "the keys of the 128-row tile in 121 KB"),
    ),
    (256, 256): (
        *_long(128, 128, "193 KB without a transposed copy of V; S 64 + O 128 + P 16 registers are 236 of 240"),
    ),
}  # fmt: skip


def rows_sm90(key: ProblemKey) -> tuple[TileRow, ...]:
    """Every row for the key's element size, head dims and V's order; SpecError where there is none."""
    table = ROWS_16_BIT if not key.dtype.is_fp8 else ROWS_8_BIT_COL_MAJOR if key.v_is_col_major else ROWS_8_BIT
    try:
        rows = table[key.head_dim, key.head_dim_v]
    except KeyError:
        raise SpecError(
            asked=f"choose a tile for head_dim {key.head_dim}, head_dim_v {key.head_dim_v}, {key.dtype.value} on SM90",
            got=f"({key.head_dim}, {key.head_dim_v})",
            allowed=", ".join(f"({d}, {dv})" for d, dv in head_dim_pairs(key.arch, key.dtype)),
            do="Use a pair that covers both, or pass a tile.",
        ) from None
    return tuple(replace(row, tile=replace(row.tile, skips_rescale=not key.dtype.is_fp8)) for row in rows)
