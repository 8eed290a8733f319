// SPDX-License-Identifier: Apache-2.0
// The general (slow) conversions, exact for every format and mode.
#include "numeric.hpp"

#include <cfenv>

namespace ptxsim {
namespace {

// Rounds a non-negative scaled value to an integer.
double round_scaled(double scaled, Rnd mode, bool negative) {
  double low = std::floor(scaled), rest = scaled - low;
  switch (mode) {
    case Rnd::RN:
      return rest > 0.5 || (rest == 0.5 && std::fmod(low, 2.0) == 1.0) ? low + 1 : low;
    case Rnd::RNA:
      return rest >= 0.5 ? low + 1 : low;
    case Rnd::RZ:
      return low;
    case Rnd::RM:
      return negative && rest > 0 ? low + 1 : low;
    case Rnd::RP:
      return !negative && rest > 0 ? low + 1 : low;
  }
  return low;
}

}  // namespace

u32 encode_float(double value, const FloatFormat& f, Rnd mode, bool satfinite) {
  if (value != value) return f.nan;
  bool negative = std::signbit(value);
  u32 sign = negative ? 1u << (f.exponent_bits + f.mantissa_bits) : 0u;
  double magnitude = std::fabs(value);
  u32 infinity = f.has_infinity ? ((1u << f.exponent_bits) - 1) << f.mantissa_bits : f.nan;
  if (std::isinf(magnitude)) return sign | (satfinite ? f.max_finite : infinity);
  if (magnitude == 0) return sign;
  int bias = (1 << (f.exponent_bits - 1)) - 1, emin = 1 - bias;
  int exponent = std::max(std::ilogb(magnitude), emin);
  double scaled = round_scaled(std::ldexp(magnitude, f.mantissa_bits - exponent), mode, negative);
  u64 units = static_cast<u64>(scaled), hidden = 1ull << f.mantissa_bits;
  u64 bits = units < hidden ? units : (static_cast<u64>(exponent - emin + 1) << f.mantissa_bits) + (units - hidden);
  if (bits > f.max_finite) {
    bool inward = mode == Rnd::RZ || (mode == Rnd::RM && !negative) || (mode == Rnd::RP && negative);
    bits = satfinite || inward ? f.max_finite : infinity;
  }
  return sign | static_cast<u32>(bits);
}

double decode_float(u32 bits, const FloatFormat& f) {
  u32 mantissa = bits & ((1u << f.mantissa_bits) - 1);
  u32 exponent = bits >> f.mantissa_bits & ((1u << f.exponent_bits) - 1);
  bool negative = bits >> (f.mantissa_bits + f.exponent_bits) & 1;
  u32 magnitude = bits & ((1u << (f.mantissa_bits + f.exponent_bits)) - 1);
  int bias = (1 << (f.exponent_bits - 1)) - 1;
  double value;
  if (magnitude > f.max_finite) {
    bool infinite = f.has_infinity && mantissa == 0;
    value = infinite ? HUGE_VAL : std::nan("");
  } else if (exponent == 0) {
    value = std::ldexp(static_cast<double>(mantissa), 1 - bias - f.mantissa_bits);
  } else {
    value = std::ldexp(static_cast<double>(mantissa + (1u << f.mantissa_bits)),
                       static_cast<int>(exponent) - bias - f.mantissa_bits);
  }
  return negative ? -value : value;
}

HostRounding::HostRounding(Rnd mode) : before_(std::fegetround()) {
  std::fesetround(mode == Rnd::RZ   ? FE_TOWARDZERO
                  : mode == Rnd::RM ? FE_DOWNWARD
                  : mode == Rnd::RP ? FE_UPWARD
                                    : FE_TONEAREST);
}
HostRounding::~HostRounding() { std::fesetround(before_); }

}  // namespace ptxsim
