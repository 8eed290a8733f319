// SPDX-License-Identifier: Apache-2.0
// From a problem to the kernel that serves it: which packed keys fit, in which order, and what happens on a miss. Not
// responsible for the table's contents or for building: the miss handler (Python) builds and registers.
#pragma once

#include <cstdint>

#include "capi.h"
#include "dispatch_table.inc"  // rendered by attnsmith.codegen.dispatch
#include "kernel_table.hpp"

namespace attnsmith {

constexpr uint64_t num_bytes(DType dtype) { return dtype == DType::kFp16 || dtype == DType::kBf16 ? 2 : 1; }
constexpr bool is_fp8(DType dtype) { return num_bytes(dtype) == 1; }

// Whether a tile's rows come from the query heads of a group.
enum class PackGqa : int { kAuto = -1, kNever = 0, kAlways = 1 };

// What one forward call asks for. Head dims are those of the launch-ready tensors.
struct FwdProblem {
  DType dtype;
  DType out_dtype;
  int head_dim;
  int head_dim_v;
  bool is_causal;
  bool v_is_col_major;
  bool packs_gqa;            // wanted, where the family has such kernels
  bool is_packing_required;  // and nothing else will do
  bool can_use_tma;          // false: the SM90 family cannot serve it
  int64_t seqlen_q;
};

// Packed keys in the order in which they are tried. No heap: this is made for every call.
struct CandidateKeys {
  uint64_t keys[8];
  int size = 0;

  void push_back(uint64_t key) { keys[size++] = key; }
  uint64_t front() const { return size > 0 ? keys[0] : 0; }
  uint64_t const* begin() const { return keys; }
  uint64_t const* end() const { return keys + size; }
};

// The keys that compute `problem` correctly on a device, best first: the SM90 family where it runs, then SM80's; packed
// tiles where they are wanted, then others. With one query row the causal mask hides nothing, so the full kernel comes
// first and the causal one still serves. Empty when the device has no such kernels (8-bit types need SM90).
CandidateKeys candidate_keys(FwdProblem const& problem, DeviceLimits const& device);

// Asked to make the best kernel for a problem available. Returns 0 once a kernel is there; otherwise it writes a message.
using MissHandler = attnsmith_miss_handler;

void set_miss_handler(MissHandler handler);

// The kernel for `problem`. Kernels of the best family that were built ahead, and pinned ones, are taken as they are.
// With JIT, the handler is asked once per problem class, so that the choice does not depend on which kernels happened to be compiled before.
// On a miss without a kernel it throws the handler's message.
Kernel const& select_kernel(FwdProblem const& problem, DeviceLimits const& device);

// The handler is asked again for every problem class. For an emptied table.
void forget_asked_problems();

}  // namespace attnsmith
