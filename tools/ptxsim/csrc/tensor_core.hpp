// SPDX-License-Identifier: Apache-2.0
// The arithmetic of one tensor-core tile, shared by every instruction that multiplies matrices.
//
// Products of fp16, bf16, tf32 and fp8 inputs are exact in fp32. They are added to the fp32 accumulator one after the
// other, k ascending, each sum rounded to nearest even. Hardware sums a group of 4 to 16 products together with the
// accumulator after aligning them to the largest exponent and truncates the low bits; its result differs from this one
// by a few units in the last place of the largest term and is in general not the more accurate of the two.
#pragma once

#ifdef __FMA__
#include <immintrin.h>
#endif

#include "numeric.hpp"

namespace ptxsim {

void halves_to_floats(const u16* in, float* out, int n);
void bf16s_to_floats(const u16* in, float* out, int n);
void e4m3s_to_floats(const u8* in, float* out, int n);
void e5m2s_to_floats(const u8* in, float* out, int n);

// c[8][8] += a * b for a[8][k] with row stride lda and b[k][8].
inline void multiply_8x8(float* c, const float* a, int lda, const float* b, int k_count) {
#ifdef __FMA__
  __m256 acc[8];
  for (int r = 0; r < 8; ++r) acc[r] = _mm256_loadu_ps(c + 8 * r);
  for (int k = 0; k < k_count; ++k) {
    __m256 row = _mm256_loadu_ps(b + 8 * k);
#pragma GCC unroll 8
    for (int r = 0; r < 8; ++r) acc[r] = _mm256_fmadd_ps(_mm256_set1_ps(a[r * lda + k]), row, acc[r]);
  }
  for (int r = 0; r < 8; ++r) _mm256_storeu_ps(c + 8 * r, acc[r]);
#else
  for (int r = 0; r < 8; ++r)
    for (int k = 0; k < k_count; ++k)
      for (int n = 0; n < 8; ++n) c[8 * r + n] = std::fma(a[r * lda + k], b[8 * k + n], c[8 * r + n]);
#endif
}

}  // namespace ptxsim
