# SPDX-License-Identifier: Apache-2.0
"""Default tiles: the rows to build and choose from for a problem, and their order for a sequence length.

The rows are data of each family (tiles_sm80.py, tiles_sm90.py). Not responsible for legality (rules.py).
"""

from __future__ import annotations

from attnsmith.codegen.spec import Arch, ProblemKey
from attnsmith.codegen.tile_row import SHORT_SEQLEN_Q, TileRow
from attnsmith.codegen.tiles_sm80 import rows_sm80
from attnsmith.codegen.tiles_sm90 import rows_sm90

__all__ = ["SHORT_SEQLEN_Q", "TileRow", "default_tiles", "order_for_seqlen"]


def default_tiles(key: ProblemKey, target: str) -> tuple[TileRow, ...]:
    """The rows for `key` on `target`, best first for long sequences.

    Raises:
        SpecError: no row for the head dims, or an unknown target.
    """
    rows = rows_sm90(key) if key.arch is Arch.SM90 else rows_sm80(key, target)
    return tuple(row for row in rows if row.mask in (None, key.mask))


def order_for_seqlen(rows: tuple[TileRow, ...], seqlen_q: int | None) -> tuple[TileRow, ...]:
    """`rows` in the order in which dispatch tries them for `seqlen_q`; None: a long sequence.

    A row whose limit holds comes first (the tightest limit before a wider one), then the rows without a limit in their
    own order, then rows whose limit does not hold: they still compute the right result.
    """

    def rank(row: TileRow) -> tuple[int, int]:
        if row.max_seqlen_q is None:
            return (1, 0)
        return (0, row.max_seqlen_q) if seqlen_q is not None and seqlen_q <= row.max_seqlen_q else (2, row.max_seqlen_q)

    return tuple(sorted(rows, key=rank))
