# SPDX-License-Identifier: Apache-2.0
"""The form of a default tile: a TileConfig, when it applies, and why. Not responsible for the rows (tiles.py)."""

from __future__ import annotations

from dataclasses import dataclass

from attnsmith.codegen.spec import Mask, TileConfig

SHORT_SEQLEN_Q = 64
"""Up to this many query rows, one 64-row tile holds all of them and a 128-row tile would compute twice as many."""


@dataclass(frozen=True, kw_only=True)
class TileRow:
    """One tile that is worth building, when it applies, and why."""

    tile: TileConfig
    """How the kernel runs."""
    reason: str
    """Why this row exists: the limit that it meets or the case that it serves."""
    mask: Mask | None = None
    """The mask that the row is for; None: every mask."""
    max_seqlen_q: int | None = None
    """The row is chosen only up to this seqlen_q (and then before rows without a limit); None: any length."""
