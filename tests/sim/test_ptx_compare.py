# SPDX-License-Identifier: Apache-2.0
"""setp, set, selp, slct and predicate logic of the simulator, every comparison and type."""

from __future__ import annotations

import operator
from collections.abc import Callable

import numpy as np
import pytest

from tests.sim.ptx import reference as ref
from tests.sim.ptx.builder import elementwise
from tests.sim.ptx.floats import DTYPES, halves
from tests.sim.ptx.floats import operands as float_operands
from tests.sim.test_ptx_integer import operands, value

ORDERED = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}
UNSIGNED_NAMES = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}
FORMATS = {"f16": ref.F16, "bf16": ref.BF16, "f32": ref.F32, "f64": ref.F64}
BOOLEANS = {"and": operator.and_, "or": operator.or_, "xor": operator.xor}
FLOAT_COMPARISONS = ["eq", "ne", "lt", "le", "gt", "ge", "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan"]


def float_compare(fmt: ref.Format, op: str, a: int, b: int) -> bool:
    """Ordered comparisons are false with a NaN, those that end in u are true."""
    unordered = fmt.is_nan(a) or fmt.is_nan(b)
    if op in ("num", "nan"):
        return unordered == (op == "nan")
    if unordered:
        return op.endswith("u")

    def order(bits: int) -> int:  # -0 equals +0
        magnitude = bits & (fmt.sign_mask - 1)
        return -magnitude if fmt.is_negative(bits) else magnitude

    return ORDERED[op[:2]](order(a), order(b))


def flags(body: str, inputs: dict[str, np.ndarray], **build: str) -> np.ndarray:
    """Result of %p0 as 0/1."""
    return elementwise(f"{body} selp.u32 %e, 1, 0, %p0;", inputs, {"e": np.uint32}, **build)["e"].astype(bool)


def integer_cases() -> list[tuple[str, str]]:
    cases = [(op, t) for t in ["u16", "s16", "u32", "s32", "u64", "s64"] for op in ORDERED]
    cases += [(op, t) for t in ["b16", "b32", "b64"] for op in ("eq", "ne")]
    return cases + [(op, t) for t in ["u16", "u32", "u64"] for op in UNSIGNED_NAMES]


@pytest.mark.parametrize("op, type_", integer_cases())
def test_setp_integer(op: str, type_: str) -> None:
    a, b = operands(int(type_[1:]), 2, count=100)
    b[::3] = a[::3]
    compare = ORDERED[UNSIGNED_NAMES.get(op, op)]
    got = flags(f"setp.{op}.{type_} %p0, %a, %b;", {"a": a, "b": b})
    want = [compare(value(x, type_), value(y, type_)) for x, y in zip(a, b, strict=True)]
    assert got.tolist() == want


@pytest.mark.parametrize("type_", FORMATS)
@pytest.mark.parametrize("op", FLOAT_COMPARISONS)
def test_setp_float(op: str, type_: str) -> None:
    fmt = FORMATS[type_]
    a, b = float_operands(fmt, 2, count=100)
    b[::5] = a[::5]
    build = {"target": "sm_90", "device": "h100"} if type_ == "bf16" else {}
    got = flags(f"setp.{op}.{type_} %p0, %a, %b;", {"a": a, "b": b}, **build)
    want = [float_compare(fmt, op, x, y) for x, y in zip(a.tolist(), b.tolist(), strict=True)]
    assert got.tolist() == want


def test_setp_ftz_compares_subnormals_as_zero() -> None:
    a = np.array([0x00000001, 0x80000001, 0x00800000, 0x007FFFFF], np.uint32)
    zero = np.zeros(4, np.uint32)
    assert flags("setp.eq.ftz.f32 %p0, %a, %b;", {"a": a, "b": zero}).tolist() == [True, True, False, True]
    assert flags("setp.eq.f32 %p0, %a, %b;", {"a": a, "b": zero}).tolist() == [False] * 4


@pytest.mark.parametrize("negated", [False, True])
@pytest.mark.parametrize("boolean", BOOLEANS)
def test_setp_combines_with_a_predicate_and_writes_both_results(boolean: str, negated: bool) -> None:
    a, b = operands(32, 2, count=64)
    c = (np.arange(len(a)) // 2 % 2).astype(np.uint32)
    sign = "!" if negated else ""
    body = f"""
      setp.ne.u32 %p2, %c, 0;
      setp.lt.{boolean}.s32 %p0|%p1, %a, %b, {sign}%p2;
      selp.u32 %x, 1, 0, %p0; selp.u32 %y, 1, 0, %p1;"""
    got = elementwise(body, {"a": a, "b": b, "c": c}, {"x": np.uint32, "y": np.uint32})
    for x, y, a_, b_, c_ in zip(got["x"], got["y"], a, b, c, strict=True):
        less, third = value(a_, "s32") < value(b_, "s32"), bool(c_) != negated
        assert bool(x) == BOOLEANS[boolean](less, third)
        assert bool(y) == BOOLEANS[boolean](not less, third)


@pytest.mark.parametrize("op", ["lt", "geu", "num"])
def test_setp_f16x2_writes_one_predicate_per_half(op: str) -> None:
    a, b = float_operands(ref.F16, 2, count=200)
    a2, b2 = np.roll(a, 7), np.roll(b, 3)
    body = f"setp.{op}.f16x2 %p0|%p1, %a, %b; selp.u32 %x, 1, 0, %p0; selp.u32 %y, 1, 0, %p1;"
    got = elementwise(body, {"a": halves(a, a2), "b": halves(b, b2)}, {"x": np.uint32, "y": np.uint32})
    low = [float_compare(ref.F16, op, int(x), int(y)) for x, y in zip(a, b, strict=True)]
    high = [float_compare(ref.F16, op, int(x), int(y)) for x, y in zip(a2, b2, strict=True)]
    assert got["x"].astype(bool).tolist() == low
    assert got["y"].astype(bool).tolist() == high


TRUE = {"u32": 0xFFFFFFFF, "s32": 0xFFFFFFFF, "f32": 0x3F800000}
SET_PAIRS = [(s, d) for s in ("s32", "u16", "f32", "f64", "f16") for d in TRUE if (s, d) != ("f16", "f32")]


@pytest.mark.parametrize("source, dtype", SET_PAIRS)
def test_set(source: str, dtype: str) -> None:
    if source in FORMATS:
        a, b = float_operands(FORMATS[source], 2, count=50)
        want = [float_compare(FORMATS[source], "le", x, y) for x, y in zip(a.tolist(), b.tolist(), strict=True)]
    else:
        a, b = operands(int(source[1:]), 2, count=50)
        want = [value(x, source) <= value(y, source) for x, y in zip(a, b, strict=True)]
    got = elementwise(f"set.le.{dtype}.{source} %e, %a, %b;", {"a": a, "b": b}, {"e": np.uint32})["e"]
    assert got.tolist() == [TRUE[dtype] if flag else 0 for flag in want]


def test_set_with_a_boolean() -> None:
    a, b = operands(32, 2, count=50)
    c = (np.arange(len(a)) % 2).astype(np.uint32)
    body = "setp.eq.u32 %p0, %c, 1; set.gt.or.u32.u32 %e, %a, %b, !%p0;"
    got = elementwise(body, {"a": a, "b": b, "c": c}, {"e": np.uint32})["e"]
    want = [0xFFFFFFFF if x > y or not z else 0 for x, y, z in zip(a, b, c, strict=True)]
    assert got.tolist() == want


def test_set_f16_results() -> None:
    a, b = float_operands(ref.F16, 2, count=50)
    got = elementwise("set.lt.f16.f16 %e, %a, %b;", {"a": a, "b": b}, {"e": np.uint16})["e"]
    want = [0x3C00 if float_compare(ref.F16, "lt", int(x), int(y)) else 0 for x, y in zip(a, b, strict=True)]
    assert got.tolist() == want
    packed = elementwise("set.lt.f16x2.f16x2 %e, %a, %b;", {"a": halves(a, b), "b": halves(b, a)}, {"e": np.uint32})[
        "e"
    ]
    swapped = [0x3C00 if float_compare(ref.F16, "lt", int(y), int(x)) else 0 for x, y in zip(a, b, strict=True)]
    assert packed.tolist() == [low | high << 16 for low, high in zip(want, swapped, strict=True)]


@pytest.mark.parametrize("type_", ["b16", "u16", "s16", "b32", "u32", "s32", "f32", "b64", "u64", "s64", "f64"])
def test_selp(type_: str) -> None:
    width = int(type_[1:])
    a, b = operands(width, 2, count=50)
    c = (np.arange(len(a)) % 3 == 0).astype(np.uint32)
    body = f"setp.ne.u32 %p0, %c, 0; selp.{type_} %e, %a, %b, %p0;"
    got = elementwise(body, {"a": a, "b": b, "c": c}, {"e": DTYPES[width]})["e"]
    assert np.array_equal(got, np.where(c != 0, a, b))


def test_slct() -> None:
    a, b = operands(32, 2, count=50)
    c = np.resize(np.array([0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF], np.uint32), len(a))
    got = elementwise("slct.u32.s32 %e, %a, %b, %c;", {"a": a, "b": b, "c": c}, {"e": np.uint32})["e"]
    assert np.array_equal(got, np.where(c.view(np.int32) >= 0, a, b))
    f = np.resize(np.array([0.0, -0.0, 1.5, -1e-40, -2.0, np.nan, np.inf], np.float32), len(a))
    got = elementwise("slct.b32.f32 %e, %a, %b, %c;", {"a": a, "b": b, "c": f}, {"e": np.uint32})["e"]
    assert np.array_equal(got, np.where(f >= 0, a, b))
    got = elementwise("slct.ftz.b32.f32 %e, %a, %b, %c;", {"a": a, "b": b, "c": f}, {"e": np.uint32})["e"]
    assert np.array_equal(got, np.where((f >= 0) | (np.abs(f) < 1e-38), a, b))


@pytest.mark.parametrize("op", BOOLEANS)
def test_predicate_logic(op: str) -> None:
    a = np.array([0, 0, 1, 1], np.uint32)
    b = np.array([0, 1, 0, 1], np.uint32)
    body = f"""
      setp.ne.u32 %p1, %a, 0; setp.ne.u32 %p2, %b, 0;
      {op}.pred %p3, %p1, %p2; not.pred %p4, %p3; mov.pred %p0, %p4;"""
    function: Callable[[bool, bool], bool] = BOOLEANS[op]
    want = [not function(bool(x), bool(y)) for x, y in zip(a, b, strict=True)]
    assert flags(body, {"a": a, "b": b}).tolist() == want


def test_predicated_execution_leaves_the_register_alone() -> None:
    a = np.arange(64, dtype=np.uint32)
    body = """
      mov.u32 %e, 7; setp.lt.u32 %p0, %a, 10; setp.gt.u32 %p1, %a, 20;
      @%p0 mov.u32 %e, 1; @!%p1 add.u32 %e, %e, 100;"""
    got = elementwise(body, {"a": a}, {"e": np.uint32})["e"]
    assert got.tolist() == [(1 if x < 10 else 7) + (100 if x <= 20 else 0) for x in range(64)]
