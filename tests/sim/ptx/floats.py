# SPDX-License-Identifier: Apache-2.0
"""Operands and comparison for floating-point tests: bit patterns in, bit patterns out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tests.sim.ptx import reference as ref
from tests.sim.ptx.builder import elementwise

DTYPES = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}


def specials(fmt: ref.Format) -> list[int]:
    """Zeros, infinities, NaNs, the ends of the subnormal and normal ranges, one and its neighbours, of both signs."""
    one = fmt.bias << fmt.mantissa_bits
    smallest_normal = 1 << fmt.mantissa_bits
    positive = [0, 1, smallest_normal - 1, smallest_normal, smallest_normal + 1, one, one + 1, one - 1, fmt.max_finite]
    positive += [one + smallest_normal, one - smallest_normal + 1, fmt.canonical_nan & (fmt.sign_mask - 1)]
    if fmt.has_infinity:
        positive += [fmt.infinity, fmt.infinity | 1 | (smallest_normal >> 1)]
    return positive + [bits | fmt.sign_mask for bits in positive]


def operands(fmt: ref.Format, arity: int, count: int = 400, seed: int = 0) -> list[np.ndarray]:
    """Every pair of specials, random bit patterns, and numbers of neighbouring magnitude (where rounding is hard)."""
    rng = np.random.default_rng(seed)
    special = np.array(specials(fmt), dtype=np.uint64)
    n = len(special)
    grid = [np.tile(special, n), np.repeat(special, n), np.roll(np.tile(special, n), 7)]
    result = []
    for column in grid:
        random = rng.integers(0, 1 << fmt.bits, count, dtype=np.uint64)
        exponent = rng.integers(fmt.bias - 3, fmt.bias + 4, count, dtype=np.uint64) << np.uint64(fmt.mantissa_bits)
        near = exponent | rng.integers(0, 1 << fmt.mantissa_bits, count, dtype=np.uint64)
        near |= rng.integers(0, 2, count, dtype=np.uint64) << np.uint64(fmt.bits - 1)
        result.append(np.concatenate([column, random, near]).astype(DTYPES[fmt.bits]))
    return result[:arity]


def finite(fmt: ref.Format, columns: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The rows in which no operand is NaN or infinite."""
    keep = [not any(fmt.is_nan(int(v)) or fmt.is_inf(int(v)) for v in row) for row in zip(*columns, strict=True)]
    return [column[np.array(keep)] for column in columns]


def check(
    body: str,
    fmt: ref.Format,
    inputs: Sequence[np.ndarray],
    expected: Callable[..., int],
    *,
    exact_nan: bool = False,
    skip: Callable[..., bool] | None = None,
    **build: Any,
) -> None:
    """Runs `body` over the operands a, b, c and compares d with `expected` of the bit patterns. A NaN result may have
    any payload unless `exact_nan`; rows for which `skip` says so are not compared."""
    named = dict(zip("abc", inputs, strict=False))
    got = elementwise(body, named, {"d": DTYPES[fmt.bits]}, **build)["d"]
    wrong = []
    rows = list(zip(*(array.tolist() for array in inputs), strict=True))
    for row, bits in zip(rows, got.tolist(), strict=True):
        if skip and skip(*row):
            continue
        want = expected(*row)
        if bits != want and (exact_nan or not (fmt.is_nan(bits) and fmt.is_nan(want))):
            wrong.append(f"{[hex(v) for v in row]} -> {bits:#x}, expected {want:#x}")
    assert not wrong, f"{body.strip()}: {len(wrong)} of {len(rows)} wrong, first: " + "; ".join(wrong[:4])


def halves(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Packs two 16-bit columns into x2 registers."""
    return low.astype(np.uint32) | high.astype(np.uint32) << np.uint32(16)
