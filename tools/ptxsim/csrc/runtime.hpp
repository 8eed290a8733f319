// SPDX-License-Identifier: Apache-2.0
// State of a running launch: warps, CTAs, workers (host threads) and the launch itself. Plain data; the executor moves
// it, families read and write it.
#pragma once

#include <atomic>
#include <mutex>
#include <vector>

#include "device.hpp"
#include "module.hpp"
#include "ptxsim.h"
#include "stats.hpp"

namespace ptxsim {

struct Allocation {
  u64 base = 0, bytes = 0;
  std::string name;
  bool writable = true;
  bool internal = false;  // kernel parameters: not what an error should call the nearest tensor
};

struct StackEntry {
  u32 pc, rpc, mask;
};

// cp.async copies of one instruction that are still in flight, for the lanes in `mask`.
struct PendingCopy {
  u32 mask, group, pc;
  u8 bytes;
  u8 src_bytes[kLanes];
  u32 dst[kLanes];
  u64 src[kLanes];
};

enum class WarpState : u8 { Ready, AtBarrier, Done };

struct Cta;
struct Worker;

struct Warp {
  u32* regs = nullptr;
  u32* preds = nullptr;
  u32 active = 0;  // lanes that execute now
  u32 alive = 0;   // lanes that have not exited
  u32 pc = 0, rpc = kNoPc;
  WarpState state = WarpState::Ready;
  std::vector<StackEntry> stack;
  u32 id = 0;
  u32 barrier = 0;  // barrier it waits at
  Cta* cta = nullptr;
  Worker* worker = nullptr;
  u8* local = nullptr;  // 32 frames of Entry::local_bytes
  std::vector<PendingCopy> copies;
  u32 copy_group[kLanes] = {};   // number of the open cp.async group
  u32 known_times[kLanes] = {};  // race.cpp: latest time of each warp whose accesses precede what this one does

  u32* r32(u32 slot) const { return regs + slot; }
  u64* r64(u32 slot) const { return reinterpret_cast<u64*>(regs + slot); }
};

// What race.cpp remembers of 16 bytes of shared memory.
struct RaceCell {
  u32 write_time = 0, read_time = 0, writers = 0, readers = 0, write_pc = 0, read_pc = 0;
  u16 write_bytes = 0, read_bytes = 0;
};

struct BarrierState {
  u32 arrived = 0;          // threads
  u32 expected = 0;         // threads; 0: every thread that has not exited
  bool counted = false;     // an explicit count was given
  u32 warps = 0;            // bit per warp that arrived
  u32 waiting = 0;          // bit per warp that waits
  u32 red_pc[kLanes] = {};  // bar.red instruction of each waiting warp
  u32 red_and = 1, red_or = 0, red_popc = 0;
  u32 times[kLanes] = {};  // race.cpp: what the arrived warps have published
};

struct Cta {
  u32 id[3] = {0, 0, 0};
  u64 linear = 0;
  std::vector<u8> smem, smem_state;  // state: ByteState per byte
  std::vector<Warp> warps;
  std::vector<u32> reg_storage, pred_storage;
  std::vector<u8> local_storage;
  BarrierState barriers[16];
  std::vector<RaceCell> race_cells;
  u32 race_time = 0;
  u32 live_threads = 0;
};

enum ByteState : u8 { kUnwritten = 0, kWritten = 1, kInFlight = 2 };

struct Launch {
  const Module* module = nullptr;
  const Entry* entry = nullptr;
  ptxsim_launch_config config{};
  const Device* device = nullptr;
  std::vector<u8> param_storage;
  u8* params = nullptr;                 // aligned to 128 B, as the constant bank is
  std::vector<Allocation> allocations;  // sorted by base
  u32 smem_bytes = 0, threads = 0, num_warps = 0;
  u64 num_ctas = 0;
  bool check_bounds = true, check_init = true, check_races = true, random_schedule = false, random_async = false,
       stats = false;
  std::atomic<u64> next_cta{0};
  std::atomic<i64> budget{0};
  std::atomic<bool> abort{false};
  std::mutex error_lock;
  std::unique_ptr<SimError> error;
  u64 error_cta = 0;
};

struct Worker {
  Launch* launch = nullptr;
  u64 rng = 0;
  Allocation cached;  // last allocation that an access hit
  Counters counters;
  std::vector<u64> executed;  // per instruction: warp executions
  std::vector<u64> lanes;     // per instruction: thread executions
  u32 random() { return static_cast<u32>(splitmix64(rng) >> 32); }
};

void run_launch(Launch* launch, Counters* total, double* seconds);  // throws SimError

}  // namespace ptxsim
