// SPDX-License-Identifier: Apache-2.0
// NaN and infinities in V that some rows of a tile must not see. A weight of 0 does not hide them: 0 * NaN is NaN. When
// O comes out not finite under a mask that hides keys, the tile is done again with such values as zeros, and each output
// element then gets back exactly what its row sees. Also 0 * Q, for a softmax scale of 0. Not responsible for K and Q
// otherwise: masking scores hides those.
#pragma once

#include <cute/tensor.hpp>

#include "attnsmith/mask.hpp"

namespace attnsmith {

// Both 16-bit formats have all exponent bits set in NaN and infinity, and only in those.
template <class Element>
static constexpr uint32_t kExponentMask = cute::is_same_v<Element, cutlass::half_t> ? 0x7c00u : 0x7f80u;

template <class Element>
CUTE_DEVICE bool is_nonfinite(uint32_t bits) {
  return (bits & kExponentMask<Element>) == kExponentMask<Element>;
}

// 0 * each element of a word, 16-bit or FP8: 0, or NaN where the element is not finite.
template <class Element>
CUTE_DEVICE uint32_t times_zero(uint32_t word) {
  constexpr int kElementBits = 8 * sizeof(Element);
  constexpr uint32_t kNaN = (1u << (kElementBits - 1)) - 1;
  uint32_t result = 0;
  CUTE_UNROLL
  for (int shift = 0; shift < 32; shift += kElementBits) {
    float const value = float(Element::bitcast(word >> shift));
    result |= value - value == 0.f ? 0u : kNaN << shift;
  }
  return result;
}

// In shared memory, by all threads; the caller synchronizes.
template <class Element, int kSize, int kNumThreads>
CUTE_DEVICE void zero_nonfinite(Element* smem, int thread) {
  uint16_t* bits = reinterpret_cast<uint16_t*>(smem);
  CUTE_NO_UNROLL
  for (int i = thread; i < kSize; i += kNumThreads) {
    if (is_nonfinite<Element>(bits[i])) { bits[i] = 0; }
  }
}

template <class Acc>
CUTE_DEVICE bool has_nonfinite(Acc const& acc) {
  float sum = 0.f;  // stays 0 unless a value is infinite or NaN
  CUTE_UNROLL
  for (int i = 0; i < cute::size(acc); ++i) { sum = fmaf(acc(i), 0.f, sum); }
  return sum != 0.f;
}

// For one column of V: the first key that holds +inf, -inf and NaN; num_keys where none does.
struct FirstNonfinite {
  int positive;
  int negative;
  int nan;
};

template <class Element, int kNumThreads>
CUTE_DEVICE void find_nonfinite(FirstNonfinite* columns, Element const* v, int64_t row_stride, int num_columns,
                                int num_keys, int thread) {
  for (int col = thread; col < num_columns; col += kNumThreads) {
    FirstNonfinite first{num_keys, num_keys, num_keys};
    CUTE_NO_UNROLL
    for (int key = num_keys - 1; key >= 0; --key) {
      uint32_t const bits = reinterpret_cast<uint16_t const*>(v)[key * row_stride + col];
      if (is_nonfinite<Element>(bits)) {
        bool const is_nan = bits & 0x7fffu & ~kExponentMask<Element>;
        (is_nan ? first.nan : bits >> 15 ? first.negative : first.positive) = key;
      }
    }
    columns[col] = first;
  }
}

// What a weighted mean over keys [0, limit) is, given that over their finite values.
CUTE_DEVICE float with_nonfinite(float mean, FirstNonfinite const& first, int limit) {
  float const infinity = -negative_infinity();
  if (first.positive < limit) { mean += infinity; }
  if (first.negative < limit) { mean -= infinity; }
  return first.nan < limit ? infinity - infinity : mean;
}

}  // namespace attnsmith
