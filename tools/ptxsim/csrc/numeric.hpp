// SPDX-License-Identifier: Apache-2.0
// Number formats: half, bfloat16, tf32, fp8 conversion with every PTX rounding mode, subnormal flushing, correctly
// rounded f32 results from exact doubles. Scalar functions without state; the fast ones are branch-free so that
// lane loops vectorize.
#pragma once

#include <cmath>

#include "types.hpp"

namespace ptxsim {

enum class Rnd : u8 { RN, RZ, RM, RP, RNA };

constexpr u32 kNanF32 = 0x7fffffffu;

inline float canonical_nan(float x) { return x == x ? x : bit_cast<float>(kNanF32); }

// Subnormals become a zero of the same sign.
inline float flush(float x) {
  u32 bits = bit_cast<u32>(x);
  return bit_cast<float>((bits & 0x7f800000u) ? bits : bits & 0x80000000u);
}
template <bool kFtz>
inline float maybe_flush(float x) {
  if constexpr (kFtz)
    return flush(x);
  else
    return x;
}

// .sat: [0, 1], NaN to +0.
inline float saturate(float x) { return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f; }
inline double saturate(double x) { return x > 0.0 ? (x < 1.0 ? x : 1.0) : 0.0; }

inline float half_to_float(u16 h) {
  u32 magnitude = static_cast<u32>(h & 0x7fffu) << 13;
  u32 finite = bit_cast<u32>(bit_cast<float>(magnitude) * 0x1p112f);
  u32 special = magnitude | 0x7f800000u;
  u32 bits = (h & 0x7c00u) == 0x7c00u ? special : finite;
  return bit_cast<float>(bits | static_cast<u32>(h & 0x8000u) << 16);
}

// Round to nearest even; NaN becomes 0x7fff.
inline u16 float_to_half(float x) {
  u32 bits = bit_cast<u32>(x), sign = bits >> 16 & 0x8000u, a = bits & 0x7fffffffu;
  u32 subnormal = bit_cast<u32>(bit_cast<float>(a) + 0.5f) - 0x3f000000u;
  u32 normal = (a - (112u << 23) + 0xfffu + (a >> 13 & 1u)) >> 13;
  u32 big = a > 0x7f800000u ? 0x7fffu : 0x7c00u;
  u32 r = a < 0x38800000u ? subnormal : normal;
  r = a >= 0x477ff000u ? big : r;
  return static_cast<u16>(a > 0x7f800000u ? 0x7fffu : r | sign);
}

inline float bf16_to_float(u16 b) { return bit_cast<float>(static_cast<u32>(b) << 16); }

inline u16 float_to_bf16(float x) {
  u32 bits = bit_cast<u32>(x);
  u32 r = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
  return static_cast<u16>((bits & 0x7fffffffu) > 0x7f800000u ? 0x7fffu : r);
}

struct FloatFormat {
  int exponent_bits, mantissa_bits;
  bool has_infinity;
  u32 max_finite;  // encoded
  u32 nan;         // encoded
};

constexpr FloatFormat kFp16{5, 10, true, 0x7bff, 0x7fff};
constexpr FloatFormat kBf16{8, 7, true, 0x7f7f, 0x7fff};
constexpr FloatFormat kTf32{8, 10, true, 0x3fbff, 0x3ffff};
constexpr FloatFormat kE4m3{4, 3, false, 0x7e, 0x7f};
constexpr FloatFormat kE5m2{5, 2, true, 0x7b, 0x7f};

// Exact value -> encoding without and with sign bit at the top of the format.
u32 encode_float(double value, const FloatFormat& format, Rnd mode, bool satfinite);
double decode_float(u32 bits, const FloatFormat& format);

// a + b in double with the last bit sticky (round to odd): rounding the result once more to fp32 or less is exact.
inline double add_round_odd(double a, double b) {
  double s = a + b;
  double bb = s - a;
  double error = (a - (s - bb)) + (b - bb);
  u64 bits = bit_cast<u64>(s);
  if (error != 0.0 && !(bits & 1)) {
    bool away = (error > 0.0) == (s > 0.0);
    if (s == s && std::fabs(s) <= 0x1.fffffffffffffp1023) bits = away ? bits + 1 : bits - 1;
  }
  return bit_cast<double>(bits);
}

inline float next_down_magnitude(float r) { return bit_cast<float>(bit_cast<u32>(r) - 1); }

// Double (exact or sticky) -> f32 in the given mode.
inline float round_to_f32(double x, Rnd mode) {
  float r = static_cast<float>(x);
  if (mode == Rnd::RN || !(x == x)) return r;
  double back = r;
  if (std::isinf(x)) return r;
  bool too_big = std::fabs(back) > std::fabs(x), too_small = std::fabs(back) < std::fabs(x);
  bool negative = std::signbit(x);
  bool want_big = (mode == Rnd::RP && !negative) || (mode == Rnd::RM && negative);
  u32 bits = bit_cast<u32>(r);
  if (want_big && too_small) ++bits;
  if (!want_big && too_big) --bits;
  return bit_cast<float>(bits);
}

// Runs f with the host's rounding mode set; for f64, where no wider type helps.
class HostRounding {
 public:
  explicit HostRounding(Rnd mode);
  ~HostRounding();

 private:
  int before_;
};

}  // namespace ptxsim
