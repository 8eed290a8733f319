// SPDX-License-Identifier: Apache-2.0
// Plain views of launch-ready tensors, and FwdParams and the grid made from them. Not responsible for torch types
// (ops.cpp) or for choosing the kernel (dispatch.hpp).
#pragma once

#include <cstdint>

#include "attnsmith/params.hpp"
#include "dispatch.hpp"
#include "kernel_table.hpp"

namespace attnsmith {

// A (batch, seqlen, nheads, head_dim) tensor whose last dim is contiguous; strides count elements.
struct TensorView {
  void* ptr = nullptr;
  int64_t batch = 0, seqlen = 0, nheads = 0, head_dim = 0;
  TensorStrides strides{};

  // Bytes from ptr to the end of the last element; 0 for an empty tensor.
  uint64_t extent_bytes(uint64_t element_bytes) const;
};

// One forward call on launch-ready tensors: head dims are multiples of 8, rows are aligned to 16 bytes.
struct FwdCall {
  DType dtype;
  TensorView q, k, v, out;
  float* lse = nullptr;  // (batch, nheads_q, seqlen_q) contiguous
  double softmax_scale = 1.0;
  bool is_causal = false;

  FwdProblem problem() const;
  bool has_work() const { return q.batch > 0 && q.seqlen > 0 && q.nheads > 0; }
};

// Throws for sizes that 32-bit fields or the grid cannot hold.
FwdParams make_params(FwdCall const& call, Kernel const& kernel);

// CTAs of the launch: num_m_blocks * nheads_q * batch, m_block fastest.
uint32_t grid_size(FwdParams const& params);

}  // namespace attnsmith
