# SPDX-License-Identifier: Apache-2.0
"""f16, f16x2, bf16 and bf16x2 arithmetic of the simulator against exact rationals rounded once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.sim.ptx import reference as ref
from tests.sim.ptx.builder import elementwise
from tests.sim.ptx.floats import check, finite, halves, operands
from tests.sim.test_ptx_float import extremum

FORMATS = {"f16": ref.F16, "bf16": ref.BF16}
OPS: dict[str, tuple[int, Callable[..., int]]] = {
    "add": (2, ref.add),
    "sub": (2, ref.sub),
    "mul": (2, ref.mul),
    "fma.rn": (3, ref.fma),
}


def hardware(op: str, type_: str) -> dict[str, str]:
    """bf16 add, sub and mul need sm_90."""
    return {"target": "sm_90", "device": "h100"} if type_.startswith("bf16") and op != "fma.rn" else {}


def registers(arity: int) -> str:
    return ", ".join(["%d", "%a", "%b", "%c"][: arity + 1])


def check_x2(
    body: str,
    fmt: ref.Format,
    columns: list[np.ndarray],
    expected: Callable[..., int],
    exact_nan: bool = False,
    **build: str,
) -> None:
    """Like check, on packed pairs whose halves hold different operands."""
    rolled = [np.roll(column, 11) for column in columns]
    packed = {name: halves(low, high) for name, low, high in zip("abc", columns, rolled, strict=False)}
    got = elementwise(body, packed, {"d": np.uint32}, **build)["d"]
    for half, rows in ((got & 0xFFFF, columns), (got >> 16, rolled)):
        for bits, row in zip(half.tolist(), zip(*(c.tolist() for c in rows), strict=True), strict=True):
            want = expected(*row)
            is_same = bits == want or (not exact_nan and fmt.is_nan(bits) and fmt.is_nan(want))
            assert is_same, f"{body}: {[hex(v) for v in row]} -> {bits:#x}, expected {want:#x}"


@pytest.mark.parametrize("type_", FORMATS)
@pytest.mark.parametrize("op", OPS)
def test_scalar(op: str, type_: str) -> None:
    fmt, (arity, function) = FORMATS[type_], OPS[op]
    check(
        f"{op}.{type_} {registers(arity)};",
        fmt,
        operands(fmt, arity),
        lambda *row: function(fmt, *row),
        **hardware(op, type_),
    )


@pytest.mark.parametrize("type_", FORMATS)
@pytest.mark.parametrize("op", OPS)
def test_packed(op: str, type_: str) -> None:
    fmt, (arity, function) = FORMATS[type_], OPS[op]
    check_x2(
        f"{op}.{type_}x2 {registers(arity)};",
        fmt,
        operands(fmt, arity, seed=5),
        lambda *row: function(fmt, *row),
        **hardware(op, type_),
    )


@pytest.mark.parametrize("modifiers", [".rn.ftz", ".sat", ".rn.ftz.sat"])
@pytest.mark.parametrize("op", ["add", "sub", "mul"])
def test_f16_ftz_and_sat(op: str, modifiers: str) -> None:
    _check_f16_modifiers(f"{op}{modifiers}.f16 %d, %a, %b;", OPS[op][1], 2, modifiers)


@pytest.mark.parametrize("modifiers", [".ftz", ".sat", ".ftz.sat", ".relu", ".ftz.relu"])
def test_f16_fma_modifiers(modifiers: str) -> None:
    _check_f16_modifiers(f"fma.rn{modifiers}.f16 %d, %a, %b, %c;", ref.fma, 3, modifiers)


def _check_f16_modifiers(body: str, function: Callable[..., int], arity: int, modifiers: str) -> None:
    fmt = ref.F16
    flush = fmt.flush if "ftz" in modifiers else lambda bits: bits

    def expected(*row: int) -> int:
        result = flush(function(fmt, *map(flush, row)))
        result = ref.saturate(fmt, result) if "sat" in modifiers else result
        return ref.relu(fmt, result) if "relu" in modifiers else result

    def is_ambiguous(*row: int) -> bool:  # tininess before or after rounding
        return "ftz" in modifiers and expected(*row) & 0x7FFF == 0x0400

    check(body, fmt, operands(fmt, arity, seed=6), expected, skip=is_ambiguous)


@pytest.mark.parametrize("x2", ["", "x2"])
def test_bf16_fma_relu(x2: str) -> None:
    run = check_x2 if x2 else check
    run(
        f"fma.rn.relu.bf16{x2} %d, %a, %b, %c;",
        ref.BF16,
        operands(ref.BF16, 3),
        lambda *row: ref.relu(ref.BF16, ref.fma(ref.BF16, *row)),
    )


@pytest.mark.parametrize("nan", ["", ".NaN"])
@pytest.mark.parametrize("type_", FORMATS)
@pytest.mark.parametrize("op", ["min", "max"])
def test_min_max(op: str, type_: str, nan: str) -> None:
    fmt = FORMATS[type_]
    columns = operands(fmt, 2, seed=7)

    def expected(a: int, b: int) -> int:
        return extremum(fmt, op, a, b, bool(nan))

    check(f"{op}{nan}.{type_} %d, %a, %b;", fmt, columns, expected, exact_nan=True)
    check_x2(f"{op}{nan}.{type_}x2 %d, %a, %b;", fmt, columns, expected, exact_nan=True)


@pytest.mark.parametrize("type_", FORMATS)
def test_min_xorsign_abs(type_: str) -> None:
    fmt = FORMATS[type_]
    check(
        f"min.xorsign.abs.{type_} %d, %a, %b;",
        fmt,
        operands(fmt, 2),
        lambda a, b: extremum(fmt, "min", a, b, xorsign=True),
        target="sm_86",
        device="rtx3090",
    )


@pytest.mark.parametrize("type_", FORMATS)
def test_neg_abs(type_: str) -> None:
    fmt = FORMATS[type_]
    columns = finite(fmt, operands(fmt, 1))
    check(f"neg.{type_} %d, %a;", fmt, columns, lambda a: a ^ 0x8000)
    check(f"abs.{type_} %d, %a;", fmt, columns, lambda a: a & 0x7FFF)
    check_x2(f"neg.{type_}x2 %d, %a;", fmt, columns, lambda a: a ^ 0x8000)
    check_x2(f"abs.{type_}x2 %d, %a;", fmt, columns, lambda a: a & 0x7FFF)
