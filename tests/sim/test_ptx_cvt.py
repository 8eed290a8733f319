# SPDX-License-Identifier: Apache-2.0
"""cvt of the simulator: every pair of types against exact rationals and Python integers."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from tests.sim.ptx import reference as ref
from tests.sim.ptx.builder import elementwise
from tests.sim.ptx.floats import DTYPES, halves, operands
from tests.sim.test_ptx_integer import edges, mask, value

INTEGERS = ["u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64"]
FLOATS = {"f16": ref.F16, "bf16": ref.BF16, "f32": ref.F32, "f64": ref.F64}
MODES = {"rn": "n", "rz": "z", "rm": "m", "rp": "p"}
INTEGER_MODES = {"rni": "n", "rzi": "z", "rmi": "m", "rpi": "p"}
H100 = {"target": "sm_90", "device": "h100"}


def width_of(type_: str) -> int:
    return int(type_.lstrip("usbf"))


def integers(type_: str, count: int = 100) -> np.ndarray:
    """Edges of every width, spread over all magnitudes."""
    width = width_of(type_)
    rng = np.random.default_rng(width)
    special = [x & mask(width) for w in (8, 16, 32, 64) for e in edges(w) for x in (e, -e)]
    random = [
        int(x) >> int(s) for x, s in zip(rng.integers(0, 2**63, count), rng.integers(0, width, count), strict=True)
    ]
    return np.array([x & mask(width) for x in special + random], DTYPES[width])


def compare(
    instruction: str,
    source: np.ndarray,
    out_width: int,
    want: list[int],
    nan_of: ref.Format | None = None,
    **build: str,
) -> None:
    got = elementwise(f"{instruction} %e, %a;", {"a": source}, {"e": DTYPES[out_width]}, **build)["e"].tolist()
    for bits, g, w in zip(source.tolist(), got, want, strict=True):
        is_same = g == w or (nan_of is not None and nan_of.is_nan(g) and nan_of.is_nan(w))
        assert is_same, f"{instruction}: {bits:#x} -> {g:#x}, expected {w:#x}"


def _range(type_: str) -> tuple[int, int]:
    width = width_of(type_)
    return (-(1 << (width - 1)), mask(width - 1)) if type_[0] == "s" else (0, mask(width))


def _can_saturate(target: str, source: str) -> bool:
    """PTX refuses .sat where no value can be out of range."""
    (low, high), (source_low, source_high) = _range(target), _range(source)
    return source_low < low or source_high > high


INTEGER_PAIRS = [
    (target, source, sat)
    for target in INTEGERS
    for source in INTEGERS
    for sat in ("", ".sat")
    if not sat or _can_saturate(target, source)
]


@pytest.mark.parametrize("target, source, sat", INTEGER_PAIRS)
def test_integer_to_integer(target: str, source: str, sat: str) -> None:
    width = width_of(target)
    a = integers(source)
    low, high = _range(target)
    values = [value(int(x), source) for x in a]
    want = [(max(low, min(high, x)) if sat else x) & mask(width) for x in values]
    compare(f"cvt{sat}.{target}.{source}", a, width, want)


@pytest.mark.parametrize("target", ["u16", "s16", "u32", "s32", "u64", "s64"])
@pytest.mark.parametrize("source", ["s8", "u8"])
def test_narrow_values_are_extended_from_their_own_bits(source: str, target: str) -> None:
    """The register is wider than the type: its upper bits do not count."""
    a = np.array([0x12FF, 0x0080, 0xFF7F, 0x0001], np.uint16)
    width = width_of(target)
    compare(f"cvt.{target}.{source}", a, width, [value(int(x), source) & mask(width) for x in a])


# PTX has no conversion between bf16 and 8-bit integers.
MIXED_PAIRS = [(f, i) for f in FLOATS for i in INTEGERS if f != "bf16" or width_of(i) > 8]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("target, source", MIXED_PAIRS)
def test_integer_to_float(target: str, source: str, mode: str) -> None:
    fmt = FLOATS[target]
    a = integers(source)
    want = [ref.round_bits(fmt, Fraction(value(int(x), source)), MODES[mode]) for x in a]
    compare(f"cvt.{mode}.{target}.{source}", a, fmt.bits, want, **(H100 if target == "bf16" else {}))


def float_values(fmt: ref.Format) -> np.ndarray:
    """Operands, plus halves and neighbours of powers of two up to 2**64."""
    near = [Fraction(2) ** e + d for e in range(-2, 65) for d in (0, Fraction(1, 2), Fraction(-1, 2), Fraction(3, 4))]
    bits = [ref.round_bits(fmt, sign * x) for x in near for sign in (1, -1)]
    return np.concatenate([operands(fmt, 1, count=150)[0], np.array(bits, DTYPES[fmt.bits])])


@pytest.mark.parametrize("mode", INTEGER_MODES)
@pytest.mark.parametrize("source, target", MIXED_PAIRS)
def test_float_to_integer_rounds_and_clamps(source: str, target: str, mode: str) -> None:
    fmt, width = FLOATS[source], width_of(target)
    a = float_values(fmt)
    # NaN: zero, unless the source is f64 or the destination has 64 bits; narrow destinations are left out there.
    if source == "f64" or (source != "f32" and width != 32):
        a = np.array([x for x in a if not fmt.is_nan(int(x))], a.dtype)
    want = [ref.to_integer(fmt, int(x), width, target[0] == "s", INTEGER_MODES[mode]) for x in a]
    compare(f"cvt.{mode}.{target}.{source}", a, width, want, **(H100 if source == "bf16" else {}))


def test_float_to_integer_of_nan_from_f64() -> None:
    nan = np.array([0x7FF8000000000000, 0xFFF8000000000001], np.uint64)
    compare("cvt.rzi.s32.f64", nan, 32, [0x80000000] * 2)
    compare("cvt.rni.s64.f64", nan, 64, [1 << 63] * 2)


def test_ftz_float_to_integer() -> None:
    a = np.array([1, 0x80000001, 0x007FFFFF, 0x3F000000], np.uint32)
    compare("cvt.rpi.ftz.s32.f32", a, 32, [0, 0, 0, 1])
    compare("cvt.rpi.s32.f32", a, 32, [1, 0, 1, 1])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("pair", ["f32.f64", "f16.f32", "f16.f64"])
def test_narrowing(pair: str, mode: str) -> None:
    target, source = (FLOATS[name] for name in pair.split("."))
    a = np.concatenate([operands(source, 1)[0], _near_halfway(source, target)])
    want = [ref.convert(source, target, int(x), MODES[mode]) for x in a]
    compare(f"cvt.{mode}.{pair}", a, target.bits, want, target)


def _near_halfway(source: ref.Format, target: ref.Format, count: int = 300) -> np.ndarray:
    """Source values half way between two targets, and their neighbours."""
    rng = np.random.default_rng(0)
    bits = []
    for low in rng.integers(0, target.max_finite, count).tolist():
        middle = (target.exact(low) + target.exact(low + 1)) / 2
        exact = ref.round_bits(source, middle)
        bits += [exact - 1, exact, exact + 1, exact | source.sign_mask]
    return np.array(bits, DTYPES[source.bits])


@pytest.mark.parametrize("pair", ["f64.f32", "f64.f16", "f32.f16"])
def test_widening_is_exact(pair: str) -> None:
    target, source = (FLOATS[name] for name in pair.split("."))
    a = operands(source, 1)[0]
    compare(f"cvt.{pair}", a, target.bits, [ref.convert(source, target, int(x)) for x in a], target)


def test_bf16_to_f32_is_exact() -> None:
    a = operands(ref.BF16, 1)[0]
    compare("cvt.f32.bf16", a, 32, [ref.convert(ref.BF16, ref.F32, int(x)) for x in a], ref.F32, **H100)


@pytest.mark.parametrize("modifiers", ["rn", "rz", "rn.relu", "rz.relu"])
@pytest.mark.parametrize("target", ["f16", "bf16"])
def test_f32_to_half_scalar_and_packed(target: str, modifiers: str) -> None:
    fmt = FLOATS[target]
    a = np.concatenate([operands(ref.F32, 1)[0], _near_halfway(ref.F32, fmt)])

    def expected(bits: int) -> int:
        result = ref.convert(ref.F32, fmt, bits, modifiers[1])
        return ref.relu(fmt, result) if "relu" in modifiers else result

    want = [expected(int(x)) for x in a]
    compare(f"cvt.{modifiers}.{target}.f32", a, 16, want, fmt)
    packed = elementwise(f"cvt.{modifiers}.{target}x2.f32 %e, %a, %b;", {"a": a, "b": np.roll(a, 3)}, {"e": np.uint32})[
        "e"
    ]
    for upper, lower, bits in zip(want, np.roll(np.array(want), 3).tolist(), packed.tolist(), strict=True):
        for got, one in ((bits >> 16, upper), (bits & 0xFFFF, lower)):  # the first operand becomes the upper half
            assert got == one or (fmt.is_nan(got) and fmt.is_nan(one))


@pytest.mark.parametrize("mode", INTEGER_MODES)
@pytest.mark.parametrize("type_", ["f32", "f64", "f16"])
def test_rounding_to_an_integral_float(type_: str, mode: str) -> None:
    fmt = FLOATS[type_]
    a = float_values(fmt)

    def expected(bits: int) -> int:
        if fmt.is_nan(bits) or fmt.is_inf(bits):
            return bits
        integer = ref.round_to_integer(fmt.exact(bits), INTEGER_MODES[mode])
        return ref.round_bits(fmt, Fraction(integer), zero_is_negative=fmt.is_negative(bits))

    compare(f"cvt.{mode}.{type_}.{type_}", a, fmt.bits, [expected(int(x)) for x in a], fmt)


def test_sat_and_ftz_between_floats() -> None:
    a = operands(ref.F32, 1)[0]
    compare("cvt.sat.f32.f32", a, 32, [ref.saturate(ref.F32, int(x)) for x in a])
    compare("cvt.ftz.f32.f32", a, 32, [ref.F32.flush(int(x)) for x in a], ref.F32)
    want = [ref.saturate(ref.F16, ref.convert(ref.F32, ref.F16, int(x))) for x in a]
    compare("cvt.rn.sat.f16.f32", a, 16, want)
    want = [ref.convert(ref.F32, ref.F64, ref.F32.flush(int(x))) for x in a]
    compare("cvt.ftz.f64.f32", a, 64, want, ref.F64)


TF32 = [("rna", "na", {}), ("rn", "n", H100), ("rz", "z", H100), ("rn.relu", "n", H100)]


@pytest.mark.parametrize("name, mode, build", TF32, ids=[row[0] for row in TF32])
def test_tf32(name: str, mode: str, build: dict[str, str]) -> None:
    """tf32 keeps 10 mantissa bits in the upper part of an f32 register; the lower 13 bits are not compared."""
    a = np.concatenate([operands(ref.F32, 1)[0], _near_halfway(ref.F32, ref.F16)])
    got = elementwise(f"cvt.{name}.tf32.f32 %e, %a;", {"a": a}, {"e": np.uint32}, **build)["e"]
    for bits, g in zip(a.tolist(), got.tolist(), strict=True):
        if ref.F32.is_nan(bits):
            assert ref.F32.is_nan(g)
            continue
        want = ref.convert(ref.F32, ref.TF32, bits, mode)
        want = ref.relu(ref.TF32, want) if "relu" in name else want
        assert g >> 13 == want, f"{bits:#x} -> {g:#x}, expected {want << 13:#x}"


FP8 = {"e4m3": ref.E4M3, "e5m2": ref.E5M2}


@pytest.mark.parametrize("relu", ["", ".relu"])
@pytest.mark.parametrize("target", FP8)
def test_f32_to_fp8(target: str, relu: str) -> None:
    fmt = FP8[target]
    a = np.concatenate([operands(ref.F32, 1)[0], _near_halfway(ref.F32, fmt)])
    b = np.roll(a, 5)
    got = elementwise(f"cvt.rn.satfinite{relu}.{target}x2.f32 %e, %a, %b;", {"a": a, "b": b}, {"e": np.uint16}, **H100)[
        "e"
    ].tolist()
    for upper, lower, bits in zip(a.tolist(), b.tolist(), got, strict=True):
        for source, g in ((upper, bits >> 8), (lower, bits & 0xFF)):
            want = ref.convert(ref.F32, fmt, source, satfinite=True)
            want = ref.relu(fmt, want) if relu else want
            assert g == want or (fmt.is_nan(g) and fmt.is_nan(want)), f"{source:#x} -> {g:#x}, expected {want:#x}"


@pytest.mark.parametrize("target", FP8)
def test_f16x2_to_fp8(target: str) -> None:
    fmt = FP8[target]
    a = operands(ref.F16, 1)[0]
    b = np.roll(a, 5)
    got = elementwise(f"cvt.rn.satfinite.{target}x2.f16x2 %e, %a;", {"a": halves(b, a)}, {"e": np.uint16}, **H100)[
        "e"
    ].tolist()
    for upper, lower, bits in zip(a.tolist(), b.tolist(), got, strict=True):
        for source, g in ((upper, bits >> 8), (lower, bits & 0xFF)):
            want = ref.convert(ref.F16, fmt, source, satfinite=True)
            assert g == want or (fmt.is_nan(g) and fmt.is_nan(want)), f"{source:#x} -> {g:#x}, expected {want:#x}"


@pytest.mark.parametrize("source", FP8)
def test_fp8_to_f16x2_all_values(source: str) -> None:
    fmt = FP8[source]
    low = np.arange(256, dtype=np.uint16)
    high = low[::-1]
    got = elementwise(f"cvt.rn.f16x2.{source}x2 %e, %a;", {"a": low | high << np.uint16(8)}, {"e": np.uint32}, **H100)[
        "e"
    ].tolist()
    for lower, upper, bits in zip(low.tolist(), high.tolist(), got, strict=True):
        for source_bits, g in ((lower, bits & 0xFFFF), (upper, bits >> 16)):
            want = ref.convert(fmt, ref.F16, source_bits)
            assert g == want or (ref.F16.is_nan(g) and ref.F16.is_nan(want))
