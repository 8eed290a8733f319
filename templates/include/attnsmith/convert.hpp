// SPDX-License-Identifier: Apache-2.0
// fp32 pairs to packed 16-bit pairs. Own three lines instead of <cutlass/numeric_conversion.h>, which alone doubles
// what NVRTC has to read. Not responsible for fp8.
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

}  // namespace attnsmith
