// SPDX-License-Identifier: Apache-2.0
// Implements forward.hpp.
#include "forward.hpp"

#include <iterator>

namespace attnsmith {

void run_forward(FwdCall const& call, Device& device, void* stream) {
  last_launch() = {};
  if (!call.has_work()) return;
  Kernel const& kernel = select_kernel(call.problem(), device.limits());
  FwdParams const params = make_params(call, kernel);
  constexpr uint64_t kElementBytes = 2;  // fp16 and bf16
  uint64_t const lse_bytes = static_cast<uint64_t>(call.q.batch * call.q.nheads * call.q.seqlen) * sizeof(float);
  Allocation const allocations[] = {
      {call.q.ptr, call.q.extent_bytes(kElementBytes), "q", false},
      {call.k.ptr, call.k.extent_bytes(kElementBytes), "k", false},
      {call.v.ptr, call.v.extent_bytes(kElementBytes), "v", false},
      {call.out.ptr, call.out.extent_bytes(kElementBytes), "out", true},
      {call.lse, lse_bytes, "lse", true},
  };
  uint32_t const grid = grid_size(params);
  device.launch(kernel, Launch{grid, &params, sizeof(params), allocations, std::size(allocations)}, stream);
  last_launch() = {&kernel, grid, device.index()};
}

LastLaunch& last_launch() {
  thread_local LastLaunch last;
  return last;
}

}  // namespace attnsmith
