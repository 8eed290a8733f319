# SPDX-License-Identifier: Apache-2.0
"""Integer instructions of the simulator against Python integers, from the PTX ISA's pseudo code."""

from __future__ import annotations

import operator
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sim.ptx.builder import elementwise, entry, run_words

DTYPES = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}
SHIFTS = [0, 1, 3, 15, 16, 17, 31, 32, 33, 63, 64, 65, 255, 256, 1 << 31, (1 << 32) - 1]


def mask(width: int) -> int:
    return (1 << width) - 1


def value(bits: int, type_: str) -> int:
    """Signed or unsigned reading of a bit pattern by a PTX type such as s32."""
    width = int(type_[1:])
    bits = int(bits) & mask(width)
    return bits - (1 << width) if type_[0] == "s" and bits >> (width - 1) else bits


def edges(width: int) -> list[int]:
    top = 1 << (width - 1)
    return [0, 1, 2, 3, 7, top - 1, top, top + 1, mask(width), mask(width) - 1, 0x55AA55AA55AA55AA & mask(width)]


def operands(width: int, arity: int, count: int = 500, seed: int = 1) -> list[np.ndarray]:
    """Random and edge bit patterns; every pair of edges occurs."""
    rng = np.random.default_rng(seed)
    special = np.array(edges(width), dtype=DTYPES[width])
    grid = [
        np.tile(special, len(special)),
        np.repeat(special, len(special)),
        np.roll(np.tile(special, len(special)), 5),
    ]
    random = [rng.integers(0, mask(width), count, dtype=np.uint64, endpoint=True).astype(DTYPES[width]) for _ in grid]
    return [np.concatenate([a, b]) for a, b in zip(grid, random, strict=True)][:arity]


def check(body: str, inputs: list[np.ndarray], out_width: int, expected: Callable[..., int]) -> None:
    """Runs `body` over the operands a, b, c and compares every element with `expected` of the bit patterns."""
    named = dict(zip("abc", inputs, strict=False))
    got = elementwise(body, named, {"d": DTYPES[out_width]})["d"]
    rows = list(zip(*(array.tolist() for array in inputs), strict=True))
    want = [expected(*row) & mask(out_width) for row in rows]
    wrong = [(row, hex(g), hex(w)) for row, g, w in zip(rows, got.tolist(), want, strict=True) if g != w]
    assert not wrong, f"{body}: {len(wrong)} of {len(rows)} wrong, first {wrong[:3]}"


def _div(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


BINARY = {
    "add": (operator.add, "u16 s16 u32 s32 u64 s64"),
    "sub": (operator.sub, "u16 s16 u32 s32 u64 s64"),
    "mul.lo": (operator.mul, "u16 s16 u32 s32 u64 s64"),
    "min": (min, "u16 s16 u32 s32 u64 s64"),
    "max": (max, "u16 s16 u32 s32 u64 s64"),
}


@pytest.mark.parametrize("op, type_", [(op, t) for op, (_, types) in BINARY.items() for t in types.split()])
def test_binary(op: str, type_: str) -> None:
    width, function = int(type_[1:]), BINARY[op][0]
    check(
        f"{op}.{type_} %d, %a, %b;",
        operands(width, 2),
        width,
        lambda a, b: function(value(a, type_), value(b, type_)),
    )


@pytest.mark.parametrize("type_", ["u16", "s16", "u32", "s32", "u64", "s64"])
def test_mul_hi_is_the_upper_half(type_: str) -> None:
    width = int(type_[1:])
    check(
        f"mul.hi.{type_} %d, %a, %b;",
        operands(width, 2),
        width,
        lambda a, b: (value(a, type_) * value(b, type_)) >> width,
    )


@pytest.mark.parametrize("type_", ["u16", "s16", "u32", "s32"])
def test_mul_wide_doubles_the_width(type_: str) -> None:
    width = int(type_[1:])
    check(
        f"mul.wide.{type_} %d, %a, %b;", operands(width, 2), 2 * width, lambda a, b: value(a, type_) * value(b, type_)
    )


@pytest.mark.parametrize("type_", ["u16", "s16", "u32", "s32", "u64", "s64"])
@pytest.mark.parametrize("half", ["lo", "hi"])
def test_mad(half: str, type_: str) -> None:
    width = int(type_[1:])

    def expected(a: int, b: int, c: int) -> int:
        product = value(a, type_) * value(b, type_)
        return (product >> width if half == "hi" else product) + c

    check(f"mad.{half}.{type_} %d, %a, %b, %c;", operands(width, 3), width, expected)


@pytest.mark.parametrize("type_", ["u16", "s16", "u32", "s32"])
def test_mad_wide_adds_a_wide_operand(type_: str) -> None:
    width = int(type_[1:])
    a, b = operands(width, 2)
    c = np.resize(operands(2 * width, 1, seed=5)[0], len(a))
    check(
        f"mad.wide.{type_} %d, %a, %b, %c;", [a, b, c], 2 * width, lambda a, b, c: value(a, type_) * value(b, type_) + c
    )


def clamp_s32(x: int) -> int:
    return max(-(1 << 31), min((1 << 31) - 1, x))


@pytest.mark.parametrize("op, function", [("add", operator.add), ("sub", operator.sub)])
def test_sat_s32_clamps(op: str, function: Callable[[int, int], int]) -> None:
    check(
        f"{op}.sat.s32 %d, %a, %b;",
        operands(32, 2),
        32,
        lambda a, b: clamp_s32(function(value(a, "s32"), value(b, "s32"))),
    )


@pytest.mark.parametrize("op", ["div", "rem"])
@pytest.mark.parametrize("type_", ["u16", "s16", "u32", "s32", "u64", "s64"])
def test_division_truncates_toward_zero(op: str, type_: str) -> None:
    width = int(type_[1:])
    a, b = operands(width, 2)
    keep = (b != 0) & (b != mask(width))  # x / 0 and MIN / -1 are unspecified
    a, b = a[keep], np.where(np.arange(keep.sum()) % 2, b[keep], b[keep] % DTYPES[width](100) + DTYPES[width](1))

    def expected(a: int, b: int) -> int:
        quotient = _div(value(a, type_), value(b, type_))
        return quotient if op == "div" else value(a, type_) - quotient * value(b, type_)

    check(f"{op}.{type_} %d, %a, %b;", [a, b], width, expected)


@pytest.mark.parametrize("type_", ["s16", "s32", "s64"])
@pytest.mark.parametrize("op, function", [("abs", abs), ("neg", operator.neg)])
def test_unary_signed(op: str, function: Callable[[int], int], type_: str) -> None:
    width = int(type_[1:])
    check(f"{op}.{type_} %d, %a;", operands(width, 1), width, lambda a: function(value(a, type_)))


@pytest.mark.parametrize("type_", ["u16", "s16", "u32", "s32", "u64", "s64"])
def test_sad(type_: str) -> None:
    width = int(type_[1:])
    check(
        f"sad.{type_} %d, %a, %b, %c;",
        operands(width, 3),
        width,
        lambda a, b, c: c + abs(value(a, type_) - value(b, type_)),
    )


@pytest.mark.parametrize("type_", ["u32", "s32"])
@pytest.mark.parametrize("half", ["lo", "hi"])
def test_mul24_and_mad24(half: str, type_: str) -> None:
    def product(a: int, b: int) -> int:
        x, y = (value(v & 0xFFFFFF, type_[0] + "24") for v in (a, b))
        return x * y >> (16 if half == "hi" else 0)

    inputs = operands(32, 3)
    check(f"mul24.{half}.{type_} %d, %a, %b;", inputs[:2], 32, product)
    check(f"mad24.{half}.{type_} %d, %a, %b, %c;", inputs, 32, lambda a, b, c: product(a, b) + c)


@pytest.mark.parametrize("width", [16, 32, 64])
@pytest.mark.parametrize("op, function", [("and", operator.and_), ("or", operator.or_), ("xor", operator.xor)])
def test_bitwise(op: str, function: Callable[[int, int], int], width: int) -> None:
    check(f"{op}.b{width} %d, %a, %b;", operands(width, 2), width, function)


@pytest.mark.parametrize("width", [16, 32, 64])
def test_not_and_cnot(width: int) -> None:
    check(f"not.b{width} %d, %a;", operands(width, 1), width, operator.invert)
    check(f"cnot.b{width} %d, %a;", operands(width, 1), width, lambda a: int(a == 0))


@pytest.mark.parametrize("op, type_", [("shl", t) for t in ("b16", "b32", "b64")])
def test_shl_clamps_the_amount(op: str, type_: str) -> None:
    width = int(type_[1:])
    a = operands(width, 1)[0]
    amount = np.resize(
        np.array([0, 1, 3, 15, 16, 17, 31, 32, 33, 63, 64, 65, 255, 256, 1 << 31, mask(32)], np.uint32), len(a)
    )
    check(f"{op}.{type_} %d, %a, %b;", [a, amount], width, lambda a, n: a << min(n, width))


@pytest.mark.parametrize("type_", ["b16", "b32", "b64", "u16", "u32", "u64", "s16", "s32", "s64"])
def test_shr_clamps_the_amount_and_fills_with_the_sign(type_: str) -> None:
    width = int(type_[1:])
    a = operands(width, 1)[0]
    amount = np.resize(
        np.array([0, 1, 3, 15, 16, 17, 31, 32, 33, 63, 64, 65, 255, 256, 1 << 31, mask(32)], np.uint32), len(a)
    )
    check(f"shr.{type_} %d, %a, %b;", [a, amount], width, lambda a, n: value(a, type_) >> min(n, width))


@pytest.mark.parametrize("mode", ["wrap", "clamp"])
@pytest.mark.parametrize("direction", ["l", "r"])
def test_shf(direction: str, mode: str) -> None:
    a, b, _ = operands(32, 3)
    amount = np.resize(np.array([0, 1, 8, 16, 31, 32, 33, 40, 63, 64, 1000, mask(32)], np.uint32), len(a))

    def expected(a: int, b: int, c: int) -> int:
        n = c & 31 if mode == "wrap" else min(c, 32)
        return (b << n) | (a >> (32 - n)) if direction == "l" else (b << (32 - n)) | (a >> n)

    check(f"shf.{direction}.{mode}.b32 %d, %a, %b, %c;", [a, b, amount], 32, expected)


@pytest.mark.parametrize("width", [32, 64])
def test_bit_counts(width: int) -> None:
    inputs = operands(width, 1)
    inputs[0] >>= np.arange(len(inputs[0]), dtype=inputs[0].dtype) % inputs[0].dtype.type(width)
    check(f"popc.b{width} %d, %a;", inputs, 32, lambda a: a.bit_count())
    check(f"clz.b{width} %d, %a;", inputs, 32, lambda a: width - a.bit_length())
    check(f"brev.b{width} %d, %a;", inputs, width, lambda a: int(f"{a:0{width}b}"[::-1], 2))


@pytest.mark.parametrize("suffix", ["", ".shiftamt"])
@pytest.mark.parametrize("type_", ["u32", "s32", "u64", "s64"])
def test_bfind(type_: str, suffix: str) -> None:
    width = int(type_[1:])

    def expected(a: int) -> int:
        signed = value(a, type_)
        significant = ~signed if signed < 0 else signed
        if significant == 0:
            return mask(32)
        position = significant.bit_length() - 1
        return width - 1 - position if suffix else position

    inputs = operands(width, 1)
    inputs[0][::2] >>= np.arange(len(inputs[0][::2]), dtype=inputs[0].dtype) % inputs[0].dtype.type(width)
    check(f"bfind{suffix}.{type_} %d, %a;", inputs, 32, expected)


def _fields(count: int) -> list[np.ndarray]:
    rng = np.random.default_rng(3)
    positions = rng.choice([0, 1, 5, 16, 31, 32, 40, 63, 64, 255, 256, 300], count).astype(np.uint32)
    lengths = rng.choice([0, 1, 4, 8, 17, 31, 32, 33, 63, 64, 255, 257], count).astype(np.uint32)
    return [positions, lengths]


@pytest.mark.parametrize("type_", ["u32", "s32", "u64", "s64"])
def test_bfe(type_: str) -> None:
    width = int(type_[1:])
    a = operands(width, 1)[0]

    def expected(a: int, b: int, c: int) -> int:
        msb, pos, length = width - 1, b & 0xFF, c & 0xFF
        sign = (a >> min(pos + length - 1, msb)) & 1 if type_[0] == "s" and length else 0
        bits = [(a >> (pos + i)) & 1 if i < length and pos + i <= msb else sign for i in range(width)]
        return sum(bit << i for i, bit in enumerate(bits))

    check(f"bfe.{type_} %d, %a, %b, %c;", [a, *_fields(len(a))], width, expected)


@pytest.mark.parametrize("width", [32, 64])
def test_bfi(width: int) -> None:
    a, b = operands(width, 2)
    positions, lengths = _fields(len(a))
    got = elementwise(
        f"bfi.b{width} %d, %a, %b, %pos, %len;",
        {"a": a, "b": b, "pos": positions, "len": lengths},
        {"d": DTYPES[width]},
    )["d"]
    for x, y, pos, length, result in zip(a, b, positions, lengths, got, strict=True):
        expected = int(y)
        for i in range(int(length) & 0xFF):
            place = (int(pos) & 0xFF) + i
            if place < width:
                expected = expected & ~(1 << place) | (((int(x) >> i) & 1) << place if i < width else 0)
        assert int(result) == expected, (hex(x), hex(y), pos, length)


def test_lop3_all_256_tables() -> None:
    body = [f"  ld.global.b32 %r{i}, [%in+{4 * i}];" for i in range(3)]
    for table in range(256):
        body += [f"  lop3.b32 %r3, %r0, %r1, %r2, {table:#x};", f"  st.global.b32 [%out+{4 * table}], %r3;"]
    a, b, c = 0xF0F0_1234, 0xCCCC_A5A5, 0xAAAA_0FF0
    got = run_words(entry("\n".join(body), ["u64 out", "u64 in"]), 256, np.array([a, b, c], np.uint32), block=1)
    for table in range(256):
        bits = (table >> (((a >> i) & 1) << 2 | ((b >> i) & 1) << 1 | (c >> i) & 1) & 1 for i in range(32))
        assert int(got[table]) == sum(bit << i for i, bit in enumerate(bits)), f"table {table:#x}"


def test_prmt_selects_bytes_and_replicates_signs() -> None:
    def expected(a: int, b: int, c: int) -> int:
        source = (b << 32 | a).to_bytes(8, "little")
        result = 0
        for i in range(4):
            selector = (c >> (4 * i)) & 0xF
            byte = source[selector & 7]
            result |= ((0xFF if byte & 0x80 else 0) if selector & 8 else byte) << (8 * i)
        return result

    check("prmt.b32 %d, %a, %b, %c;", operands(32, 3, count=3000), 32, expected)


PRMT_MODES = {  # bytes b3 b2 b1 b0 of the result for c[1:0] = 0, 1, 2, 3
    "f4e": ["3210", "4321", "5432", "6543"],
    "b4e": ["5670", "6701", "7012", "0123"],
    "rc8": ["0000", "1111", "2222", "3333"],
    "ecl": ["3210", "3211", "3222", "3333"],
    "ecr": ["0000", "1110", "2210", "3210"],
    "rc16": ["1010", "3232", "1010", "3232"],
}


@pytest.mark.parametrize("mode", PRMT_MODES)
def test_prmt_modes(mode: str) -> None:
    def expected(a: int, b: int, c: int) -> int:
        source = (b << 32 | a).to_bytes(8, "little")
        return int.from_bytes(bytes(source[int(digit)] for digit in PRMT_MODES[mode][c & 3]), "big")

    check(f"prmt.b32.{mode} %d, %a, %b, %c;", operands(32, 3), 32, expected)


def test_carry_chain_adds_and_subtracts_128_bits() -> None:
    rng = np.random.default_rng(9)
    words = {name: rng.integers(0, 2**32, 400, dtype=np.uint64).astype(np.uint32) for name in "abcdefgh"}
    for name in "abcdefgh":
        words[name][::3] = rng.choice([0, 0xFFFFFFFF, 1], len(words[name][::3]))
    body = """
      add.cc.u32 %s0, %a, %e; addc.cc.u32 %s1, %b, %f; addc.cc.u32 %s2, %c, %g; addc.u32 %s3, %d, %h;
      sub.cc.u32 %m0, %a, %e; subc.cc.u32 %m1, %b, %f; subc.cc.u32 %m2, %c, %g; subc.u32 %m3, %d, %h;"""
    out = elementwise(body, words, {f"{kind}{i}": np.uint32 for kind in "sm" for i in range(4)})
    for row in range(400):
        x = sum(int(words[name][row]) << (32 * i) for i, name in enumerate("abcd"))
        y = sum(int(words[name][row]) << (32 * i) for i, name in enumerate("efgh"))
        for kind, expected in (("s", x + y), ("m", x - y)):
            got = sum(int(out[f"{kind}{i}"][row]) << (32 * i) for i in range(4))
            assert got == expected & mask(128), (kind, hex(x), hex(y))


def test_carry_chain_of_64_bit_words() -> None:
    a, b, c = operands(64, 3)
    body = "add.cc.u64 %lo, %a, %b; addc.u64 %hi, %c, 0; sub.cc.u64 %mlo, %a, %b; subc.u64 %mhi, %c, 0;"
    out = elementwise(body, {"a": a, "b": b, "c": c}, dict.fromkeys(["lo", "hi", "mlo", "mhi"], np.uint64))
    for x, y, z, lo, hi, mlo, mhi in zip(a, b, c, *out.values(), strict=True):
        x, y, z = int(x), int(y), int(z)
        assert (int(hi) << 64 | int(lo)) == ((z << 64) + x + y) & mask(128)
        assert (int(mhi) << 64 | int(mlo)) == ((z << 64) + x - y) & mask(128)


def test_mad_cc_multiplies_64_by_32_bits() -> None:
    a, b, c = operands(32, 3)
    # (c:a) * b by the schoolbook method
    body = """
      mul.lo.u32 %w0, %a, %b; mul.hi.u32 %w1, %a, %b;
      mad.lo.cc.u32 %w1, %c, %b, %w1; madc.hi.u32 %w2, %c, %b, 0;"""
    out = elementwise(body, {"a": a, "b": b, "c": c}, dict.fromkeys(["w0", "w1", "w2"], np.uint32))
    for x, y, z, w0, w1, w2 in zip(a, b, c, *out.values(), strict=True):
        assert int(w0) | int(w1) << 32 | int(w2) << 64 == (int(x) | int(z) << 32) * int(y)


@pytest.mark.parametrize("b_type", ["u32", "s32"])
@pytest.mark.parametrize("a_type", ["u32", "s32"])
def test_dp4a_and_dp2a(a_type: str, b_type: str) -> None:
    def part(bits: int, index: int, width: int, type_: str) -> int:
        return value(bits >> (index * width), f"{type_[0]}{width}")

    def dp4a(a: int, b: int, c: int) -> int:
        return c + sum(part(a, i, 8, a_type) * part(b, i, 8, b_type) for i in range(4))

    def dp2a(first: int) -> Callable[[int, int, int], int]:
        return lambda a, b, c: c + sum(part(a, i, 16, a_type) * part(b, first + i, 8, b_type) for i in range(2))

    inputs = operands(32, 3)
    check(f"dp4a.{a_type}.{b_type} %d, %a, %b, %c;", inputs, 32, dp4a)
    check(f"dp2a.lo.{a_type}.{b_type} %d, %a, %b, %c;", inputs, 32, dp2a(0))
    check(f"dp2a.hi.{a_type}.{b_type} %d, %a, %b, %c;", inputs, 32, dp2a(2))


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(*[st.integers(0, mask(32))] * 3), min_size=1, max_size=64))
def test_random_expression(rows: list[tuple[int, int, int]]) -> None:
    """A chain of dependent instructions: each result feeds the next."""
    body = """
      mad.lo.u32 %r0, %a, %b, %c; shf.l.wrap.b32 %r1, %r0, %a, %b; prmt.b32 %r2, %r1, %c, 0x5140;
      sub.u32 %r3, %r2, %r0; bfe.u32 %r4, %r3, 7, 13; xor.b32 %d, %r4, %r3;"""

    def expected(a: int, b: int, c: int) -> int:
        r0 = (a * b + c) & mask(32)
        n = b & 31
        r1 = ((a << n) | (r0 >> (32 - n))) & mask(32)
        source = (c << 32 | r1).to_bytes(8, "little")
        r2 = int.from_bytes(bytes(source[i] for i in (0, 4, 1, 5)), "little")
        r3 = (r2 - r0) & mask(32)
        return ((r3 >> 7) & mask(13)) ^ r3

    check(body, [np.array(column, np.uint32) for column in zip(*rows, strict=True)], 32, expected)


@pytest.mark.parametrize(
    "literal, expected",
    [
        ("0x1F", 0x1F),
        ("0X1fU", 0x1F),
        ("017", 0o17),
        ("0b101", 5),
        ("-1", mask(32)),
        ("42U", 42),
        ("0xFFFFFFFF", mask(32)),
    ],
)
def test_integer_literals(literal: str, expected: int) -> None:
    ptx = entry(f"  mov.b32 %r0, {literal};\n  st.global.b32 [%out], %r0;")
    assert int(run_words(ptx, 1, block=1)[0]) == expected


@pytest.mark.parametrize("mode", ["clamp", "wrap"])
def test_bmsk(mode: str) -> None:
    a, _ = operands(32, 2)
    position = np.resize(np.array([0, 1, 5, 31, 32, 40, mask(32)], np.uint32), len(a))
    width = np.resize(np.array([0, 1, 8, 31, 32, 33, 64, 5, 27, mask(32), 3], np.uint32), len(a))

    def expected(a: int, b: int) -> int:
        total = (a & 31) + (b & 31)
        low = mask(32) << (a & 31)
        high = mask(32) << total
        if mode == "clamp" and a >= 32:
            low = 0
        if total >= 32 or (mode == "clamp" and (a >= 32 or b >= 32)):
            high = 0
        return low & ~high

    check(f"bmsk.{mode}.b32 %d, %a, %b;", [position, width], 32, expected)
