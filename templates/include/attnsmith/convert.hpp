// SPDX-License-Identifier: Apache-2.0
// fp32 to packed 16-bit pairs and packed e4m3. Own three lines instead of <cutlass/numeric_conversion.h>, which alone doubles
// what NVRTC has to read.
#pragma once

#include <cute/numeric/numeric_types.hpp>

namespace attnsmith {

// Rounds to nearest even; `low` lands in the low half.
template <class Element>
CUTE_DEVICE uint32_t pack(float low, float high) {
  uint32_t packed;
  if constexpr (cute::is_same_v<Element, cutlass::half_t>) {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  } else {
    static_assert(cute::is_same_v<Element, cutlass::bfloat16_t>, "16-bit output types only");
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  }
  return packed;
}

// Four e4m3, `a` in the lowest byte. Rounds to nearest even; beyond 448 it would saturate, NaN stays NaN.
CUTE_DEVICE uint32_t pack_e4m3(float a, float b, float c, float d) {
  uint32_t packed;
  asm("{\n.reg .b16 low, high;\n"
      "cvt.rn.satfinite.e4m3x2.f32 low, %2, %1;\ncvt.rn.satfinite.e4m3x2.f32 high, %4, %3;\n"
      "mov.b32 %0, {low, high};\n}\n"
      : "=r"(packed)
      : "f"(a), "f"(b), "f"(c), "f"(d));
  return packed;
}

}  // namespace attnsmith
