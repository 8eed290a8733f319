// SPDX-License-Identifier: Apache-2.0
// Online softmax over key blocks, fp32, in the log2 domain. Holds the running reference maximum and partial row sums of
// the rows of one thread. Not responsible for masking or for the GEMMs.
//
// Weights are p = 2^(s * scale_log2 - base) with base = m_ref * scale_log2, where m_ref is the row's *reference*
// maximum. It follows the true maximum lazily: as long as no score of the warp exceeds its row's m_ref by more than
// kRescaleLog2 (log2), m_ref stays, weights stay <= 2^kRescaleLog2 (in range of fp16 and bf16 at unchanged relative
// precision), and neither the rescale of O nor the row reduction across the quad is needed. Row sums and O carry the
// same base, so the result after normalization is unaffected.
#pragma once

#include <cute/tensor.hpp>

#include "attnsmith/constants.hpp"
#include "attnsmith/layout.hpp"
#include "attnsmith/params.hpp"

namespace attnsmith {

CUTE_DEVICE float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));  // -inf -> 0, NaN -> NaN
  return y;
}

// For row sums, which are in [2^-8, 2^8 seqlen_k] or 0 or NaN: absolute error 2^-22, and 1 ulp. The library functions'
// treatment of subnormal arguments would cost a call, and with it registers in the whole kernel.
CUTE_DEVICE float log2_approx(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

CUTE_DEVICE float reciprocal_approx(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Reductions over the 4 threads of a quad, which hold one accumulator row together.
CUTE_DEVICE float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
  return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
}

CUTE_DEVICE float quad_sum(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 2);
  return x + __shfl_xor_sync(0xffffffffu, x, 1);
}

// Two forms. The fast one folds scale and base into one fused multiply-add; it is not exact where base itself rounds
// coarsely. The exact one subtracts before it scales. State differs: exact keeps m_ref, fast keeps base; one call of
// enter_fast() converts. A row that needs the exact form throughout reports it as a NaN row sum.
template <int kNumRows>
struct OnlineSoftmax {
  // Beyond this |base| the rounding of base (half an ulp, 2^-8) is no longer small against the weights, and for huge
  // scores it would even overflow them.
  static constexpr float kExactBase = 65536.f;

  // Reference of a row that has seen no key: below every score, yet finite, so that -inf minus it is still -inf.
  static constexpr float kNoKey = -3.0e38f;

  float reference[kNumRows];  // m_ref (exact form) or base (fast form)
  float row_sum[kNumRows];    // this thread's columns only

  CUTE_DEVICE OnlineSoftmax() {
    CUTE_UNROLL
    for (int mi = 0; mi < kNumRows; ++mi) {
      reference[mi] = kNoKey;
      row_sum[mi] = 0.f;
    }
  }

  CUTE_DEVICE void enter_fast(float scale_log2) {
    CUTE_UNROLL
    for (int mi = 0; mi < kNumRows; ++mi) { reference[mi] *= scale_log2; }
  }

  // Reports rows whose base, found by the exact form, is too coarse for the fast one. A row without a key yet is not one.
  CUTE_DEVICE void report_coarse_bases() {
    CUTE_UNROLL
    for (int mi = 0; mi < kNumRows; ++mi) {
      if (fabsf(reference[mi]) > kExactBase && row_sum[mi] != 0.f) { row_sum[mi] = nan(); }
    }
  }

  CUTE_DEVICE static float nan() { return __int_as_float(0x7fffffff); }

  // Moves the reference up where needed and rescales row_sum and acc_o accordingly.
  //   scores  (row, col) raw scores; -inf where a row does not see a column
  //   acc_o   accumulator fragment ((2,2),MMA_M,MMA_N) of O
  template <bool kIsExact, class Scores, class AccO>
  CUTE_DEVICE void update_max(FwdParams const& params, Scores const& scores, AccO& acc_o) {
    using namespace cute;
    float tile_max[kNumRows];
    bool exceeds = false;
    CUTE_UNROLL
    for (int mi = 0; mi < kNumRows; ++mi) {
      tile_max[mi] = scores(mi, 0);
      CUTE_UNROLL
      for (int ni = 1; ni < size<1>(scores); ++ni) { tile_max[mi] = fmaxf(tile_max[mi], scores(mi, ni)); }
      exceeds |= kIsExact ? tile_max[mi] > reference[mi] + params.rescale_threshold
                          : fmaf(tile_max[mi], params.scale_log2, -reference[mi]) > kRescaleLog2;
    }
    if (__any_sync(0xffffffffu, exceeds)) { rescale<kIsExact>(params.scale_log2, tile_max, acc_o); }
  }

  template <bool kIsExact, class AccO>
  CUTE_DEVICE void rescale(float scale_log2, float const (&tile_max)[kNumRows], AccO& acc_o) {
    using namespace cute;
    Tensor acc_o_rowcol = make_tensor(acc_o.data(), accumulator_rowcol(acc_o.layout()));
    float const to_log2 = kIsExact ? scale_log2 : 1.f;
    CUTE_UNROLL
    for (int mi = 0; mi < kNumRows; ++mi) {
      float const old = reference[mi];  // kNoKey before the first key: row_sum and O are still 0 then
      reference[mi] = fmaxf(old, quad_max(tile_max[mi]) * (kIsExact ? 1.f : scale_log2));
      float const correction = exp2_approx((old - reference[mi]) * to_log2);
      row_sum[mi] *= correction;
      if (!kIsExact && fabsf(reference[mi]) > kExactBase) { row_sum[mi] = nan(); }
      CUTE_UNROLL
      for (int ni = 0; ni < size<1>(acc_o_rowcol); ++ni) { acc_o_rowcol(mi, ni) *= correction; }
    }
  }

  template <bool kIsExact>
  CUTE_DEVICE float weight(float scale_log2, float score, int mi) const {
    return exp2_approx(kIsExact ? (score - reference[mi]) * scale_log2
                                : fmaf(score, scale_log2, -reference[mi]));
  }

  CUTE_DEVICE bool has_nan() const {
    bool is_nan = false;
    CUTE_UNROLL
    for (int mi = 0; mi < kNumRows; ++mi) { is_nan |= row_sum[mi] != row_sum[mi]; }
    return is_nan;
  }

  // After enter_fast(): returns the factor that normalizes a row of O and sets its natural-log LSE; a row that saw no
  // key gives factor 0 and -inf.
  CUTE_DEVICE float finish(int mi, float& lse) const {
    float const sum = quad_sum(row_sum[mi]);
    bool const is_empty = sum == 0.f;  // a row that saw a key has a weight of at least 2^-8 in it
    lse = is_empty ? negative_infinity() : (reference[mi] + log2_approx(sum)) * kLn2;
    return is_empty ? 0.f : reciprocal_approx(sum);
  }
};

}  // namespace attnsmith
