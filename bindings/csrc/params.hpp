// SPDX-License-Identifier: Apache-2.0
// Plain views of launch-ready tensors, and FwdParams and the number of tiles made from them. Not responsible for torch
// types (ops.cpp), for what only SM90 has (params_sm90.hpp) or for choosing the kernel (dispatch.hpp).
#pragma once

#include <cstdint>

#include "attnsmith/params.hpp"
#include "dispatch.hpp"
#include "kernel_table.hpp"

namespace attnsmith {

// A (batch, seqlen, nheads, head_dim) tensor; strides count elements. The last dim is contiguous, but for a
// column-major v, whose seqlen is.
struct TensorView {
  void* ptr = nullptr;
  int64_t batch = 0, seqlen = 0, nheads = 0, head_dim = 0;
  TensorStrides strides{};
  int64_t head_dim_stride = 1;

  bool is_col_major() const { return head_dim_stride != 1; }
  // Bytes from ptr to the end of the last element; 0 for an empty tensor.
  uint64_t extent_bytes(uint64_t element_bytes) const;
};

// What a tensor's elements are multiplied by: fp32 (batch, nheads_k); a null pointer means 1.
struct DescaleView {
  float const* ptr = nullptr;
  int64_t batch_stride = 0, head_stride = 0;
};

// One forward call on launch-ready tensors: rows of whole 16-byte units, aligned to 16 bytes.
struct FwdCall {
  DType dtype;
  DType out_dtype;
  TensorView q, k, v, out;
  float* lse = nullptr;  // (batch, nheads_q, seqlen_q) contiguous
  DescaleView q_descale, k_descale, v_descale;  // 8-bit types only
  double softmax_scale = 1.0;
  bool is_causal = false;
  PackGqa pack_gqa = PackGqa::kAuto;

  FwdProblem problem() const;
  bool has_work() const { return q.batch > 0 && q.seqlen > 0 && q.nheads > 0; }
};

// Throws for sizes that 32-bit fields or the grid cannot hold.
FwdParams make_params(FwdCall const& call, Kernel const& kernel);

// Output tiles of the launch: num_m_blocks * num_heads * batch. Throws for more than 2^31 - 1.
int32_t num_output_tiles(int32_t num_m_blocks, int32_t num_heads, int32_t batch);

// `value` as an int32_t; throws naming it when it does not fit.
int32_t narrow(char const* name, int64_t value);

}  // namespace attnsmith
