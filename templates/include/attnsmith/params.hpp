// SPDX-License-Identifier: Apache-2.0
// Launch parameters: the one struct that crosses from the host launcher into a kernel. Included by both, so it is
// plain C++17 without a CUDA or a torch type. Not responsible for checking any value: the launcher does.
#pragma once

#if !defined(__CUDACC_RTC__)
#include <cstdint>
#endif

namespace attnsmith {

// Element strides of one (batch, seqlen, nheads, head_dim) tensor whose last dim is contiguous.
struct TensorStrides {
  int64_t batch;
  int64_t row;
  int64_t head;
};

// Forward attention, dense batch. Strides count elements and are 64 bit: offsets beyond 2^31 elements are legal.
struct FwdParams {
  void const* q_ptr;  // (batch, seqlen_q, nheads_q, head_dim)
  void const* k_ptr;  // (batch, seqlen_k, nheads_k, head_dim)
  void const* v_ptr;  // (batch, seqlen_k, nheads_k, head_dim_v)
  void* o_ptr;        // (batch, seqlen_q, nheads_q, head_dim_v)
  float* lse_ptr;     // (batch, nheads_q, seqlen_q) contiguous, natural log

  TensorStrides q_strides;
  TensorStrides k_strides;
  TensorStrides v_strides;
  TensorStrides o_strides;

  int32_t batch;
  int32_t seqlen_q;
  int32_t seqlen_k;
  int32_t nheads_q;
  int32_t nheads_k;
  int32_t nheads_q_per_k;
  int32_t head_dim;      // as given; the kernel's kHeadDim may be larger
  int32_t head_dim_v;
  int32_t num_m_blocks;  // ceil(seqlen_q / kBlockM): the launcher's and the kernel's tile count agree by construction

  // softmax_scale, split by set_softmax_scale: the kernels assume a positive factor and fold its sign into q.
  float scale_log2;         // |softmax_scale| * log2(e), > 0
  float rescale_threshold;  // kRescaleLog2 / scale_log2: in units of the unscaled score
  int32_t q_sign;           // -1, 0 or 1
};

// A running maximum may lag behind by this much (log2) before the output accumulator is rescaled: weights stay <= 256.
static constexpr float kRescaleLog2 = 8.f;

// Any finite scale is legal: a negative one flips q, zero makes every score 0 (softmax over equal scores). What fp32 cannot
// hold after the change of base is clamped: up to the largest number, and below the smallest normal one to zero.
inline void set_softmax_scale(FwdParams& params, float softmax_scale) {
  constexpr float kMinNormal = 1.17549435e-38f, kMax = 3.40282347e+38f;
  float magnitude = (softmax_scale < 0.f ? -softmax_scale : softmax_scale) * 1.44269504088896341f;
  if (magnitude > kMax) { magnitude = kMax; }
  bool const is_zero = magnitude < kMinNormal;
  params.q_sign = is_zero ? 0 : softmax_scale < 0.f ? -1 : 1;
  params.scale_log2 = is_zero ? 1.f : magnitude;
  params.rescale_threshold = kRescaleLog2 / params.scale_log2;
}

}  // namespace attnsmith
