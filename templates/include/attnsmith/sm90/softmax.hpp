// SPDX-License-Identifier: Apache-2.0
// Online softmax over key blocks for the SM90 kernels, fp32, in the log2 domain. Not responsible for masking, for the
// GEMMs or for O: the caller rescales O by the correction that it is told.
//
// Weights are p = 2^(s * scale_log2 - base). base follows the row's maximum lazily: while no score of the warp exceeds
// it by more than kHeadroom, neither the reduction of the maximum over the quad nor a rescale is needed. All weights of
// a row share one base, whose own rounding therefore cancels when O is normalized; only its distance from the true
// maximum must stay small. For |base| above kExactBase it does not: such a row changes to the exact form, where scores
// have the row's reference maximum subtracted before they are scaled. Its base is then the constant -kShift and its
// reference lies in shared memory.
#pragma once

#include <cute/tensor.hpp>

#include "attnsmith/constants.hpp"
#include "attnsmith/layout.hpp"
#include "attnsmith/softmax.hpp"

namespace attnsmith::sm90 {

// 2^x without MUFU, for x < 127.5. Cody-Waite: x = n + r with |r| <= 1/2, 2^r by a polynomial of degree 5 (relative error
// below 2^-22, that of ex2.approx), 2^n by the exponent's bits. -inf gives 0, NaN gives NaN.
CUTE_DEVICE float exp2_fma(float x) {
  asm("max.NaN.f32 %0, %0, 0fC2FE0000;" : "+f"(x));  // -127, where 2^n becomes 0
  constexpr float kRound = 12582912.f;                // 1.5 * 2^23: adding it leaves n in the low bits
  float const shifted = x + kRound;
  float const r = x - (shifted - kRound);
  float p = 1.326472438e-3f;
  p = fmaf(p, r, 9.671513239e-3f);
  p = fmaf(p, r, 5.550733756e-2f);
  p = fmaf(p, r, 2.402224207e-1f);
  p = fmaf(p, r, 6.931469776e-1f);
  p = fmaf(p, r, 1.f);
  return p * __int_as_float((__float_as_int(shifted) << 23) + 0x3f800000);
}

template <class Traits>
struct Softmax {
  static constexpr int kNumRows = 2;  // of a thread: lane / 4 and lane / 4 + 8 of its warp's 16
  // The row maximum's weight is 2^kShift: e4m3 covers 2^-9 to 448, so 2^8 leaves the most room below.
  static constexpr float kShift = Traits::kIsFp8 ? 8.f : 0.f;
  // How far above the base (log2) a score may be: at 2^8 weights are far inside fp16's range. In e4m3 a lagging base would
  // round the largest weight, which a power of two is not.
  static constexpr float kHeadroom = kShift + (Traits::kSkipsRescale ? 8.f : 0.f);
  // base rounds by at most 1 below it; for e4m3, by 2^-11, so that the largest weight still rounds to 2^kShift.
  static constexpr float kExactBase = Traits::kIsFp8 ? 8192.f : 16777216.f;
  static constexpr float kNoKey = -3.0e38f;        // base of a row that has seen no key: finite, so that -inf minus it is -inf

  float base[kNumRows];
  float row_sum[kNumRows];  // this thread's columns only
  uint32_t special_rows;    // bit mi: row mi has the exact form; bit kNumRows + mi: no score above -inf yet

  CUTE_DEVICE Softmax() : special_rows(((1u << kNumRows) - 1) << kNumRows) {
    CUTE_UNROLL
    for (int mi = 0; mi < kNumRows; ++mi) {
      base[mi] = kNoKey;
      row_sum[mi] = 0.f;
    }
  }

  CUTE_DEVICE bool is_exact(int mi) const { return special_rows >> mi & 1; }
  CUTE_DEVICE bool is_empty(int mi) const { return special_rows >> (kNumRows + mi) & 1; }

  // Moves bases up where needed. Returns whether O must be multiplied by `correction` (of each row); uniform per warp.
  //   scores           (row, col); of rows in the exact form, the reference is subtracted
  //   exact_reference  of the warp's 16 rows, in shared memory
  template <class Scores>
  CUTE_DEVICE bool update(Scores& scores, float scale_log2, float* exact_reference, float (&correction)[kNumRows]) {
    using namespace cute;
    float tile_max[kNumRows];
    bool exceeds = special_rows != 0;
    CUTE_UNROLL
    for (int mi = 0; mi < kNumRows; ++mi) {
      tile_max[mi] = scores(mi, 0);
      CUTE_UNROLL
      for (int ni = 1; ni < size<1>(scores); ++ni) { tile_max[mi] = fmaxf(tile_max[mi], scores(mi, ni)); }
      exceeds |= fmaf(tile_max[mi], scale_log2, -base[mi]) > kHeadroom;
    }
    bool const is_rescaled = __any_sync(0xffffffffu, exceeds);
    if (is_rescaled) {
      CUTE_UNROLL
      for (int mi = 0; mi < kNumRows; ++mi) {
        correction[mi] = move_base(mi, quad_max(tile_max[mi]), scale_log2, exact_reference, scores);
        row_sum[mi] *= correction[mi];
      }
    }
    return is_rescaled;
  }

  template <class Scores>
  CUTE_DEVICE float move_base(int mi, float row_max, float scale_log2, float* exact_reference, Scores& scores) {
    bool const was_empty = is_empty(mi);
    if (was_empty && !(row_max > negative_infinity())) { return 1.f; }
    special_rows &= ~(1u << (kNumRows + mi));
    float const wanted = fmaf(row_max, scale_log2, -kShift);
    float const moved = was_empty ? wanted : fmaxf(base[mi], wanted);
    if (is_exact(mi) || fabsf(moved) > kExactBase) {
      return to_exact(mi, was_empty, row_max, scale_log2, exact_reference, scores);
    }
    float const correction = was_empty ? 0.f : exp2_approx(base[mi] - moved);
    base[mi] = moved;
    return correction;
  }

  // A row in, or on its way to, the exact form.
  template <class Scores>
  CUTE_DEVICE float to_exact(int mi, bool was_empty, float row_max, float scale_log2, float* exact_reference,
                             Scores& scores) {
    using namespace cute;
    float* const slot = exact_reference + lane() / 4 + 8 * mi;
    bool const was_exact = is_exact(mi);
    float const old = was_exact ? *slot : row_max;
    float const reference = fmaxf(old, row_max);
    float const shrinks_by =
        was_exact ? (old - reference) * scale_log2 : fmaf(-reference, scale_log2, base[mi] + kShift);
    unsigned const quad = 0xfu << (lane() & ~3);  // the branch that leads here is the same in all its lanes
    __syncwarp(quad);
    if (lane() % 4 == 0) { *slot = reference; }
    __syncwarp(quad);
    special_rows |= 1u << mi;
    base[mi] = -kShift;
    CUTE_UNROLL
    for (int ni = 0; ni < size<1>(scores); ++ni) { scores(mi, ni) -= reference; }
    return was_empty ? 0.f : exp2_approx(shrinks_by);
  }

  CUTE_DEVICE static int lane() { return threadIdx.x % 32; }

  // Scores become weights.
  template <class Scores>
  CUTE_DEVICE void exponentiate(Scores& scores, float scale_log2) {
    using namespace cute;
    CUTE_UNROLL
    for (int ni = 0; ni < size<1>(scores); ++ni) {
      CUTE_UNROLL
      for (int mi = 0; mi < kNumRows; ++mi) {
        float const x = fmaf(scores(mi, ni), scale_log2, -base[mi]);
        bool const is_on_fma = ni / 2 % 8 < Traits::kExp2FmaEighths;
        scores(mi, ni) = is_on_fma ? exp2_fma(x) : exp2_approx(x);
        row_sum[mi] += scores(mi, ni);
      }
    }
  }

  // Returns the factor that normalizes a row of O and sets its natural-log LSE. For a row that sees a key.
  CUTE_DEVICE float finish(int mi, float scale_log2, float const* exact_reference, float& lse) const {
    float const sum = quad_sum(row_sum[mi]);
    float log2_sum = log2_approx(sum) + base[mi];
    if (is_exact(mi)) { log2_sum = fmaf(exact_reference[lane() / 4 + 8 * mi], scale_log2, log2_sum); }
    lse = log2_sum * kLn2;
    return sum == 0.f ? 0.f : reciprocal_approx(sum);  // 0: all scores that the row sees are -inf; the LSE is, too
  }
};

}  // namespace attnsmith::sm90
