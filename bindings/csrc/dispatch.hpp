// SPDX-License-Identifier: Apache-2.0
// From a problem to the kernel that serves it: which packed keys fit, in which order, and what happens on a miss. Not
// responsible for the table's contents or for building: the miss handler (Python) builds and registers.
#pragma once

#include <cstdint>

#include "dispatch_table.inc"  // rendered by attnsmith.codegen.dispatch
#include "kernel_table.hpp"

namespace attnsmith {

// What one forward call asks for. Head dims are those of the launch-ready tensors: multiples of 8.
struct FwdProblem {
  DType dtype;
  int head_dim;
  int head_dim_v;
  bool is_causal;
  int64_t seqlen_q;
};

// Packed keys in the order in which they are tried. No heap: this is made for every call.
struct CandidateKeys {
  uint64_t keys[4];
  int size = 0;

  void push_back(uint64_t key) { keys[size++] = key; }
  uint64_t front() const { return keys[0]; }
  uint64_t const* begin() const { return keys; }
  uint64_t const* end() const { return keys + size; }
};

// The keys that compute `problem` correctly on a device, best first. With one query row the causal mask hides nothing,
// so the full kernel comes first and the causal one still serves.
CandidateKeys candidate_keys(FwdProblem const& problem);

// Asked to make the best kernel for a problem available; `has_usable` says that the table has one that computes it.
// Returns 0 once a kernel is there; otherwise it writes a message.
using MissHandler = int (*)(int dtype, int head_dim, int head_dim_v, int is_causal, int64_t seqlen_q,
                            char const* target, int has_usable, char* message, uint64_t message_capacity);

void set_miss_handler(MissHandler handler);

// The kernel for `problem`. Kernels that were built ahead or pinned are taken as they are. With JIT, the handler is
// asked once per problem class, so that the choice does not depend on which kernels happened to be compiled before.
// On a miss without a kernel it throws the handler's message.
Kernel const& select_kernel(FwdProblem const& problem, DeviceLimits const& device);

// The handler is asked again for every problem class. For an emptied table.
void forget_asked_problems();

}  // namespace attnsmith
