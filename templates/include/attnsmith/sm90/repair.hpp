// SPDX-License-Identifier: Apache-2.0
// NaN and infinities in V that a row must not see. Under a mask that hides keys, a block on its boundary multiplies a
// weight of 0 with them, which gives NaN. Where staged output is not finite for that reason, the row is computed anew
// from the keys that it sees, from global memory: rare, so simple. Not responsible for K and Q: masking hides those.
#pragma once

#include "attnsmith/nonfinite.hpp"
#include "attnsmith/sm90/fwd_consumer.hpp"

namespace attnsmith::sm90 {

CUTE_DEVICE float warp_sum(float x) {
  CUTE_UNROLL
  for (int lanes = 16; lanes > 0; lanes /= 2) { x += __shfl_xor_sync(0xffffffffu, x, lanes); }
  return x;
}

CUTE_DEVICE float warp_max(float x) {
  CUTE_UNROLL
  for (int lanes = 16; lanes > 0; lanes /= 2) { x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, lanes)); }
  return x;
}

CUTE_DEVICE bool is_finite(float x) { return x - x == 0.f; }

// One row of the output, by a warp.
template <class Traits>
struct RowRepair {
  using Element = typename Traits::Element;
  static constexpr int kNumColumns = (Traits::kHeadDimV + 31) / 32;  // of a lane: lane, lane + 32, ...

  FwdParams const& params;
  Element const* q;  // the row
  Element const* k;  // key 0
  Element const* v;
  int num_seen;      // keys [0, num_seen)
  int num_visited;   // keys that the main loop multiplied
  float scale_log2;  // with its sign

  CUTE_DEVICE int64_t v_offset(int key, int col) const {
    // Column-major V has contiguous keys: its strides are those of the columns.
    if constexpr (Traits::kVIsColMajor) { return col * params.v_strides.row + key; }
    return key * params.v_strides.row + col;
  }

  // Whether some key that the row does not see, but that was multiplied, is not finite in this column.
  CUTE_DEVICE bool is_spoiled(int col) const {
    CUTE_NO_UNROLL
    for (int key = cute::max(num_seen, 0); key < num_visited; ++key) {
      if (!is_finite(float(v[v_offset(key, col)]))) { return true; }
    }
    return false;
  }

  CUTE_DEVICE float score(int key) const {
    float sum = 0.f;
    CUTE_NO_UNROLL
    for (int i = 0; i < params.head_dim; ++i) {
      sum = fmaf(float(q[i]), float(k[key * params.k_strides.row + i]), sum);
    }
    return sum;
  }

  // out[c] = the weighted mean of the lane's c-th column over the keys that the row sees; 0 without a key.
  CUTE_DEVICE void recompute(float (&out)[kNumColumns]) const {
    int const lane = threadIdx.x % 32;
    float row_max = Softmax<Traits>::kNoKey, row_sum = 0.f;
    CUTE_UNROLL
    for (int c = 0; c < kNumColumns; ++c) { out[c] = 0.f; }
    CUTE_NO_UNROLL
    for (int first = 0; first < num_seen; first += 32) {
      bool const is_seen = first + lane < num_seen;
      float const mine = is_seen ? score(first + lane) * (scale_log2 < 0.f ? -1.f : 1.f) : negative_infinity();
      float const new_max = fmaxf(row_max, warp_max(mine));
      float const correction = exp2_approx((row_max - new_max) * fabsf(scale_log2));
      float const weight = is_seen ? exp2_approx((mine - new_max) * fabsf(scale_log2)) : 0.f;
      row_max = new_max;
      row_sum = row_sum * correction + warp_sum(weight);
      CUTE_UNROLL
      for (int c = 0; c < kNumColumns; ++c) { out[c] *= correction; }
      CUTE_NO_UNROLL
      for (int i = 0; i < cute::min(32, num_seen - first); ++i) {
        float const p = __shfl_sync(0xffffffffu, weight, i);
        CUTE_UNROLL
        for (int c = 0; c < kNumColumns; ++c) {
          int const col = lane + 32 * c;
          if (col < params.head_dim_v) { out[c] = fmaf(p, float(v[v_offset(first + i, col)]), out[c]); }
        }
      }
    }
    CUTE_UNROLL
    for (int c = 0; c < kNumColumns; ++c) { out[c] = row_sum == 0.f ? 0.f : out[c] / row_sum; }
  }
};

}  // namespace attnsmith::sm90
