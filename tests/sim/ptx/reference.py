# SPDX-License-Identifier: Apache-2.0
"""Floating-point arithmetic from first principles: exact rationals, rounded once. The oracle of the simulator's tests.

Responsible for formats, rounding modes, flush-to-zero and saturation as the PTX ISA defines them. Shares nothing with
the simulator. A float is its bit pattern (int); `exact` opens it, `round_bits` closes it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True)
class Format:
    """A binary floating-point format."""

    name: str
    exponent_bits: int
    mantissa_bits: int
    has_infinity: bool = True
    """False for e4m3: the largest exponent is used for numbers, only all-ones is NaN."""
    canonical_nan: int = 0

    @property
    def bits(self) -> int:
        return 1 + self.exponent_bits + self.mantissa_bits

    @property
    def bias(self) -> int:
        return (1 << (self.exponent_bits - 1)) - 1

    @property
    def sign_mask(self) -> int:
        return 1 << (self.bits - 1)

    @property
    def min_exponent(self) -> int:
        """Exponent of the smallest normal number."""
        return 1 - self.bias

    @property
    def infinity(self) -> int:
        return ((1 << self.exponent_bits) - 1) << self.mantissa_bits

    @property
    def max_finite(self) -> int:
        return self.infinity - 1 if self.has_infinity else (self.sign_mask - 1) - 1

    def is_nan(self, bits: int) -> bool:
        magnitude = bits & (self.sign_mask - 1)
        return magnitude > self.infinity if self.has_infinity else magnitude == self.sign_mask - 1

    def is_inf(self, bits: int) -> bool:
        return self.has_infinity and bits & (self.sign_mask - 1) == self.infinity

    def is_negative(self, bits: int) -> bool:
        return bool(bits & self.sign_mask)

    def is_zero(self, bits: int) -> bool:
        return bits & (self.sign_mask - 1) == 0

    def is_subnormal(self, bits: int) -> bool:
        magnitude = bits & (self.sign_mask - 1)
        return 0 < magnitude < 1 << self.mantissa_bits

    def flush(self, bits: int) -> int:
        """Sign-preserving zero for a subnormal, else the value itself."""
        return bits & self.sign_mask if self.is_subnormal(bits) else bits

    def exact(self, bits: int) -> Fraction:
        """Value of a finite bit pattern."""
        assert not self.is_nan(bits) and not self.is_inf(bits)
        mantissa = bits & ((1 << self.mantissa_bits) - 1)
        exponent = (bits >> self.mantissa_bits) & ((1 << self.exponent_bits) - 1)
        if exponent:
            mantissa |= 1 << self.mantissa_bits
        scale = max(exponent, 1) - self.bias - self.mantissa_bits
        value = Fraction(mantissa) * (Fraction(2) ** scale)
        return -value if self.is_negative(bits) else value


F16 = Format("f16", 5, 10, canonical_nan=0x7FFF)
BF16 = Format("bf16", 8, 7, canonical_nan=0x7FFF)
F32 = Format("f32", 8, 23, canonical_nan=0x7FFFFFFF)
F64 = Format("f64", 11, 52, canonical_nan=0x7FFFFFFFFFFFFFFF)
TF32 = Format("tf32", 8, 10)  # bits of the upper 19; callers shift left by 13
E4M3 = Format("e4m3", 4, 3, has_infinity=False, canonical_nan=0x7F)
E5M2 = Format("e5m2", 5, 2, canonical_nan=0x7F)


def round_to_integer(value: Fraction, mode: str) -> int:
    """Rounds to an integer: n nearest even, na nearest away from zero on ties, z, m (down), p (up)."""
    floor = math.floor(value)
    remainder = value - floor
    if mode == "m" or remainder == 0:
        return floor
    if mode == "p":
        return floor + 1
    if mode == "z":
        return floor + (value < 0)
    if remainder != Fraction(1, 2):
        return floor + (remainder > Fraction(1, 2))
    if mode == "na":
        return floor + (value > 0)
    assert mode == "n", mode
    return floor + (floor & 1)


def round_bits(
    fmt: Format, value: Fraction, mode: str = "n", *, zero_is_negative: bool = False, satfinite: bool = False
) -> int:
    """Nearest bit pattern of `value` in the rounding mode n, na, z, m or p; overflow as IEEE 754, or to the largest
    finite number with `satfinite`."""
    sign = fmt.sign_mask if value < 0 or (value == 0 and zero_is_negative) else 0
    if value == 0:
        return sign
    magnitude = abs(value)
    exponent = _floor_log2(magnitude)
    step = Fraction(2) ** (max(exponent, fmt.min_exponent) - fmt.mantissa_bits)
    # Directed rounding is defined on the signed value.
    units = abs(round_to_integer(value / step, mode))
    largest = fmt.exact(fmt.max_finite)
    if units * step > largest:
        towards_zero = mode == "z" or (mode == "m" and value > 0) or (mode == "p" and value < 0)
        if satfinite or towards_zero:
            return sign | fmt.max_finite
        return sign | (fmt.infinity if fmt.has_infinity else fmt.canonical_nan)
    return sign | _encode(fmt, units, max(exponent, fmt.min_exponent))


def _encode(fmt: Format, units: int, exponent: int) -> int:
    if units >> (fmt.mantissa_bits + 1):  # rounded up to the next power of two
        units >>= 1
        exponent += 1
    if units < 1 << fmt.mantissa_bits:
        return units
    return ((exponent + fmt.bias) << fmt.mantissa_bits) | (units & ((1 << fmt.mantissa_bits) - 1))


def _floor_log2(value: Fraction) -> int:
    guess = value.numerator.bit_length() - value.denominator.bit_length()
    return guess if Fraction(2) ** guess <= value else guess - 1


def fma(fmt: Format, a: int, b: int, c: int, mode: str = "n") -> int:
    """a * b + c, rounded once."""
    if fmt.is_nan(a) or fmt.is_nan(b) or fmt.is_nan(c):
        return fmt.canonical_nan
    product_negative = fmt.is_negative(a) != fmt.is_negative(b)
    if fmt.is_inf(a) or fmt.is_inf(b):
        if fmt.is_zero(a) or fmt.is_zero(b):
            return fmt.canonical_nan
        if fmt.is_inf(c) and fmt.is_negative(c) != product_negative:
            return fmt.canonical_nan
        return fmt.infinity | (fmt.sign_mask if product_negative else 0)
    if fmt.is_inf(c):
        return c
    product, addend = fmt.exact(a) * fmt.exact(b), fmt.exact(c)
    total = product + addend
    if product == 0 and addend == 0 and product_negative == fmt.is_negative(c):
        negative = product_negative
    else:
        negative = mode == "m"  # an exact zero sum of opposite signs is +0, except rounding down
    return round_bits(fmt, total, mode, zero_is_negative=negative)


def add(fmt: Format, a: int, b: int, mode: str = "n") -> int:
    """a + b."""
    one = fmt.bias << fmt.mantissa_bits
    return fma(fmt, a, one, b, mode)


def sub(fmt: Format, a: int, b: int, mode: str = "n") -> int:
    """a - b."""
    return add(fmt, a, b if fmt.is_nan(b) else b ^ fmt.sign_mask, mode)


def mul(fmt: Format, a: int, b: int, mode: str = "n") -> int:
    """a * b."""
    if fmt.is_nan(a) or fmt.is_nan(b):
        return fmt.canonical_nan
    negative = fmt.is_negative(a) != fmt.is_negative(b)
    zero_of_sign = fmt.sign_mask if negative else 0
    if fmt.is_inf(a) or fmt.is_inf(b) or fmt.is_zero(a) or fmt.is_zero(b):
        return fma(fmt, a, b, zero_of_sign, mode)
    return round_bits(fmt, fmt.exact(a) * fmt.exact(b), mode, zero_is_negative=negative)


def div(fmt: Format, a: int, b: int, mode: str = "n") -> int:
    """a / b."""
    if fmt.is_nan(a) or fmt.is_nan(b) or (fmt.is_inf(a) and fmt.is_inf(b)):
        return fmt.canonical_nan
    sign = fmt.sign_mask if fmt.is_negative(a) != fmt.is_negative(b) else 0
    if fmt.is_zero(b):
        return fmt.canonical_nan if fmt.is_zero(a) else sign | fmt.infinity
    if fmt.is_inf(a):
        return sign | fmt.infinity
    if fmt.is_inf(b):
        return sign
    return round_bits(fmt, fmt.exact(a) / fmt.exact(b), mode, zero_is_negative=bool(sign))


def sqrt(fmt: Format, a: int, mode: str = "n") -> int:
    """Square root."""
    if fmt.is_nan(a) or (fmt.is_negative(a) and not fmt.is_zero(a)):
        return fmt.canonical_nan
    if fmt.is_inf(a) or fmt.is_zero(a):
        return a
    value = fmt.exact(a)
    shift = 2 * fmt.bits + (1 << fmt.exponent_bits)  # leaves every subnormal enough digits
    scaled = math.floor(value * (1 << 2 * shift))
    root = math.isqrt(scaled)
    inexact = root * root != scaled or scaled != value * (1 << 2 * shift)
    # A sticky bit below every rounding position stands for the tail that was cut off.
    return round_bits(fmt, Fraction(2 * root + inexact, 2 << shift), mode)


def saturate(fmt: Format, bits: int) -> int:
    """.sat: clamp to [0, 1], NaN becomes +0."""
    one = fmt.bias << fmt.mantissa_bits
    if fmt.is_nan(bits) or fmt.is_negative(bits):
        return 0
    return min(bits, one)


def relu(fmt: Format, bits: int) -> int:
    """.relu: negative becomes +0, NaN canonical."""
    if fmt.is_nan(bits):
        return fmt.canonical_nan
    return 0 if fmt.is_negative(bits) else bits


def convert(source: Format, target: Format, bits: int, mode: str = "n", *, satfinite: bool = False) -> int:
    """Conversion between formats."""
    if source.is_nan(bits):
        return target.canonical_nan
    sign = target.sign_mask if source.is_negative(bits) else 0
    if source.is_inf(bits):
        if satfinite or not target.has_infinity:
            return sign | (target.max_finite if satfinite else target.canonical_nan)
        return sign | target.infinity
    return round_bits(target, source.exact(bits), mode, zero_is_negative=bool(sign), satfinite=satfinite)


def to_integer(source: Format, bits: int, width: int, signed: bool, mode: str) -> int:
    """cvt to an integer: rounds, clamps to the destination's range; the result is its bit pattern. NaN as the ISA says:
    zero, but 1 << (width - 1) if the source is f64 or the destination has 64 bits."""
    low, high = (-(1 << (width - 1)), (1 << (width - 1)) - 1) if signed else (0, (1 << width) - 1)
    if source.is_nan(bits):
        value = 1 << (width - 1) if source is F64 or width == 64 else 0
    elif source.is_inf(bits):
        value = low if source.is_negative(bits) else high
    else:
        value = max(low, min(high, round_to_integer(source.exact(bits), mode)))
    return value & ((1 << width) - 1)
