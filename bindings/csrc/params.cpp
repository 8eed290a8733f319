// SPDX-License-Identifier: Apache-2.0
// Implements params.hpp.
#include "params.hpp"

#include <limits>
#include <string>

#include "error.hpp"
#include "params_sm90.hpp"

namespace attnsmith {

int32_t narrow(char const* name, int64_t value) {
  int64_t const max = std::numeric_limits<int32_t>::max();
  if (value < 0 || value > max) {
    fail("launch forward attention", std::string(name) + " " + std::to_string(value), "0 to " + std::to_string(max),
         "Split the call.");
  }
  return static_cast<int32_t>(value);
}

uint64_t TensorView::extent_bytes(uint64_t element_bytes) const {
  if (batch == 0 || seqlen == 0 || nheads == 0 || head_dim == 0) return 0;
  int64_t const last = (batch - 1) * strides.batch + (seqlen - 1) * strides.row + (nheads - 1) * strides.head +
                       (head_dim - 1) * head_dim_stride;
  return static_cast<uint64_t>(last + 1) * element_bytes;
}

FwdProblem FwdCall::problem() const {
  FwdProblem problem{};
  problem.dtype = dtype;
  problem.out_dtype = out_dtype;
  problem.head_dim = static_cast<int>(q.head_dim);
  problem.head_dim_v = static_cast<int>(v.head_dim);
  problem.is_causal = is_causal;
  problem.v_is_col_major = v.is_col_major();
  problem.packs_gqa = packs_gqa(*this);
  problem.can_use_tma = can_use_tma(*this);
  problem.is_packing_required = pack_gqa == PackGqa::kAlways;
  problem.seqlen_q = q.seqlen;
  return problem;
}

FwdParams make_params(FwdCall const& call, Kernel const& kernel) {
  FwdParams params{};
  params.q_ptr = call.q.ptr;
  params.k_ptr = call.k.ptr;
  params.v_ptr = call.v.ptr;
  params.o_ptr = call.out.ptr;
  params.lse_ptr = call.lse;
  params.q_strides = call.q.strides;
  params.k_strides = call.k.strides;
  params.v_strides = call.v.strides;
  params.o_strides = call.out.strides;
  params.batch = narrow("batch", call.q.batch);
  params.seqlen_q = narrow("seqlen_q", call.q.seqlen);
  params.seqlen_k = narrow("seqlen_k", call.k.seqlen);
  params.nheads_q = narrow("nheads_q", call.q.nheads);
  params.nheads_k = narrow("nheads_k", call.k.nheads);
  params.nheads_q_per_k = params.nheads_q / params.nheads_k;
  params.head_dim = narrow("head_dim", call.q.head_dim);
  params.head_dim_v = narrow("head_dim_v", call.v.head_dim);
  int64_t const block_m = kernel.tile.block_m;
  params.num_m_blocks = narrow("num_m_blocks", (call.q.seqlen + block_m - 1) / block_m);
  set_softmax_scale(params, static_cast<float>(call.softmax_scale));
  return params;
}

int32_t num_output_tiles(int32_t num_m_blocks, int32_t num_heads, int32_t batch) {
  // num_m_blocks * num_heads fits 62 bits; the product with batch is checked by division.
  int64_t const max = std::numeric_limits<int32_t>::max();
  int64_t const per_batch = static_cast<int64_t>(num_m_blocks) * num_heads;
  if (per_batch > max / batch) {
    fail("launch forward attention",
         std::to_string(num_m_blocks) + " query blocks * " + std::to_string(num_heads) + " heads * " +
             std::to_string(batch) + " batches",
         "at most " + std::to_string(max) + " CTAs", "Split the call along the batch.");
  }
  return static_cast<int32_t>(per_batch * batch);
}

}  // namespace attnsmith
