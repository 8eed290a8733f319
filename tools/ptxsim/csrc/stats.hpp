// SPDX-License-Identifier: Apache-2.0
// Counters of one launch, shared-memory bank arithmetic and the JSON that reports them.
#pragma once

#include <string>

#include "module.hpp"

namespace ptxsim {

enum class SharedPort : u8 { Ld, St, Ldmatrix, Stmatrix, CpAsync, kCount };

struct Counters {
  u64 warp_instructions = 0, thread_instructions = 0;
  u64 by_class[static_cast<int>(Cls::kCount)] = {};
  u64 tensor_flops = 0, mufu_ops = 0;
  u64 global_bytes_read = 0, global_bytes_written = 0, global_sectors_read = 0, global_sectors_written = 0;
  u64 shared_wavefronts[static_cast<int>(SharedPort::kCount)] = {};
  u64 shared_conflicts[static_cast<int>(SharedPort::kCount)] = {};
  u64 tma_bytes_read = 0, tma_bytes_written = 0;  // global bytes of bulk and tensor copies, in bounds
  u64 barrier_waits = 0, divergent_branches = 0, ctas = 0;

  void add(const Counters& other);
  std::string to_json(double seconds) const;

  // One warp access: lane addresses within shared memory, `bytes` per lane (a power of two, at most 32).
  void shared_access(SharedPort port, const u32* offsets, u32 mask, u32 bytes);
  // One warp access to global memory: counts distinct 32-byte sectors.
  void global_access(bool write, const u64* addresses, u32 mask, u32 bytes);
};

}  // namespace ptxsim
