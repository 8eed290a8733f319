// SPDX-License-Identifier: Apache-2.0
// Implements forward.hpp.
#include "forward.hpp"

#include <iterator>

#include "error.hpp"
#include "params_sm90.hpp"

namespace attnsmith {

namespace {

uint64_t descale_bytes(DescaleView const& view, TensorView const& k) {
  if (view.ptr == nullptr || k.batch == 0 || k.nheads == 0) return 0;
  int64_t const last = (k.batch - 1) * view.batch_stride + (k.nheads - 1) * view.head_stride;
  return static_cast<uint64_t>(last + 1) * sizeof(float);
}

// Launches with `params`, the kernel's one parameter; memory of no bytes is not part of the launch.
template <typename Params>
void launch(FwdCall const& call, Kernel const& kernel, Params const& params, uint32_t grid, TileCounter* counter,
            Device& device, void* stream) {
  uint64_t const in_bytes = num_bytes(call.dtype);
  uint64_t const lse_bytes = static_cast<uint64_t>(call.q.batch * call.q.nheads * call.q.seqlen) * sizeof(float);
  Allocation const allocations[] = {
      {call.q.ptr, call.q.extent_bytes(in_bytes), "q", false},
      {call.k.ptr, call.k.extent_bytes(in_bytes), "k", false},
      {call.v.ptr, call.v.extent_bytes(in_bytes), "v", false},
      {call.out.ptr, call.out.extent_bytes(num_bytes(call.out_dtype)), "out", true},
      {call.lse, lse_bytes, "lse", true},
      {call.q_descale.ptr, descale_bytes(call.q_descale, call.k), "q_descale", false},
      {call.k_descale.ptr, descale_bytes(call.k_descale, call.k), "k_descale", false},
      {call.v_descale.ptr, descale_bytes(call.v_descale, call.k), "v_descale", false},
      {counter, counter != nullptr ? sizeof(TileCounter) : 0, "tile_counter", true},
  };
  device.launch(kernel, Launch{grid, &params, sizeof(params), allocations, std::size(allocations)}, stream);
  last_launch() = {&kernel, grid, device.index()};
}

// 8-bit types have no kernel that loads without TMA.
void require_kernels(FwdCall const& call, Device const& device) {
  if (!is_fp8(call.dtype) || !device.limits().runs_sm90() || can_use_tma(call)) return;
  fail("launch forward attention", "a tensor of an 8-bit type that TMA cannot address",
       "strides below 2^40 bytes, and none of 0 along a dim of more than one element", "Copy the tensor.");
}

}  // namespace

void run_forward(FwdCall const& call, Device& device, void* stream) {
  last_launch() = {};
  if (!call.has_work()) return;
  require_kernels(call, device);
  Kernel const& kernel = select_kernel(call.problem(), device.limits());
  if (kernel.key.arch == Arch::kSm90) {
    FwdSm90Launch const sm90 = make_sm90_launch(call, kernel, device, stream);
    launch(call, kernel, sm90.params, sm90.grid, sm90.params.tile_counter, device, stream);
  } else {
    FwdParams const params = make_params(call, kernel);
    auto const grid = static_cast<uint32_t>(num_output_tiles(params.num_m_blocks, params.nheads_q, params.batch));
    launch(call, kernel, params, grid, nullptr, device, stream);
  }
}

LastLaunch& last_launch() {
  thread_local LastLaunch last;
  return last;
}

}  // namespace attnsmith
