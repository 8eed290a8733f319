// SPDX-License-Identifier: Apache-2.0
// State of a running launch: warps, CTAs, workers (host threads) and the launch itself. Plain data; the executor moves
// it, families read and write it.
#pragma once

#include <atomic>
#include <deque>
#include <map>
#include <mutex>
#include <vector>

#include "device.hpp"
#include "error.hpp"
#include "module.hpp"
#include "ptxsim.h"
#include "stats.hpp"

namespace ptxsim {

inline u64 splitmix64(u64& state) {
  u64 z = (state += 0x9e3779b97f4a7c15ull);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

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

// AtMbarrier: suspended in mbarrier.try_wait; AtWarpgroup: in wgmma.wait_group until its warpgroup has issued the same;
// AtCluster: in barrier.cluster.wait; AtSetmaxnreg: until the CTA's pool has enough registers.
enum class WarpState : u8 { Ready, AtBarrier, Done, AtMbarrier, AtWarpgroup, AtCluster, AtSetmaxnreg };

// What race.cpp knows at a moment: latest times of each warp whose accesses precede (known) and, of these, the ones
// that a proxy fence has made visible to the async proxy (fenced).
struct Clock {
  u32 known[kLanes], fenced[kLanes];
};

// One contiguous part of a bulk copy. src 0: out of bounds.
struct BulkPiece {
  u32 smem, bytes;
  u64 global;
};

// A bulk copy into shared memory that has not landed yet.
struct BulkLoad {
  u32 pc = 0, bytes = 0;  // bytes: what it completes on the mbarrier
  struct Cta* cta = nullptr;  // whose shared memory it writes
  struct Cta* issuer = nullptr;
  u32 mbarrier = 0;
  u8 fill_bytes = 1;
  u64 fill = 0;  // pattern of out-of-bounds elements
  const u8* shared_source = nullptr;  // shared::cta source of a copy to shared::cluster
  std::vector<BulkPiece> pieces;
  Clock clock;
};

// A bulk copy or reduction out of shared memory.
struct BulkStore {
  u32 pc = 0, group = 0;
  int lane = 0;
  bool committed = false, read = false;
  u8 reduction = 0;  // 0: plain copy, see bulk_reduce
  Ty type = Ty::B8;
  std::vector<BulkPiece> pieces;
  std::vector<u8> data;  // once read
  Clock clock;
};

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
  u32 fenced_times[kLanes] = {};  // the same, as far as fence.proxy.async has made it visible to the async proxy
  bool yields = false;            // ends its slice: a poll that failed
  // mbarrier.try_wait
  u32 wait_address = 0, wait_lanes = 0, wait_pc = 0, wait_pred = 0;
  u64 wait_phase = 0;  // it waits until the mbarrier has passed this one
  // bulk copies out of shared memory
  std::vector<BulkStore> stores;
  u32 store_group[kLanes] = {};
  // wgmma: instructions issued and not yet waited for, and the count of issued ones at each commit
  std::vector<const Inst*> matrix_ops;
  std::vector<u64> matrix_groups;
  u64 matrix_issued = 0, matrix_done = 0;
  std::vector<u32> register_lock;   // per register: 1 + instruction of the in-flight wgmma that owns it
  std::vector<u32> register_epoch;  // per register: fence epoch of the last write by anything but wgmma
  u32 fence_epoch = 0;
  u32 registers = 0;  // setmaxnreg
  bool cluster_arrived = false, spins = false;
  u64 cluster_phase = 0;

  u32* r32(u32 slot) const { return regs + slot; }
  u64* r64(u32 slot) const { return reinterpret_cast<u64*>(regs + slot); }
};

// What race.cpp remembers of 16 bytes of shared memory.
struct RaceCell {
  u32 write_time = 0, read_time = 0, writers = 0, readers = 0, write_pc = 0, read_pc = 0;
  u16 write_bytes = 0, read_bytes = 0;
  bool async_write = false;  // by the async proxy
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
  u32 fenced[kLanes] = {};
};

// An mbarrier object: phases are numbered from 0, the parity of a phase is that of its number.
struct Mbarrier {
  u32 expected = 0, pending = 0, init_pc = 0;
  i64 tx = 0;
  u64 phase = 0;
  bool init_fenced = false;                     // a fence has made the initialization visible to the async proxy
  // race.cpp: what arrivals have published. Who sees a phase end knows of its arrivals, not of the next phase's.
  u32 times[kLanes] = {}, fenced[kLanes] = {};
  u32 pending_times[kLanes] = {}, pending_fenced[kLanes] = {};
};

// One wgmma.mma_async of a warpgroup between issue and completion.
struct MatrixOp {
  const Inst* inst = nullptr;
  u64 a = 0, b = 0;  // descriptors
  bool accumulate = false;
  u32 joined = 0;  // bit per warp of the group
  Clock clocks[4];
};

// Operations [begin, end) have happened at `time`, on behalf of `warp`.
struct MatrixCompletion {
  u64 begin, end;
  u32 warp, time;
};

struct Warpgroup {
  std::deque<MatrixOp> ops;
  u64 first = 0;                             // number of ops[0]
  std::deque<MatrixCompletion> completions;  // race.cpp: what a warp that waits for them knows; until all have waited
};

struct Cluster;

struct Cta {
  Cluster* cluster = nullptr;
  u32 rank = 0;
  bool exited = false;
  std::map<u32, Mbarrier> mbarriers;
  std::vector<Warpgroup> warpgroups;
  u32 cluster_times[kLanes] = {}, cluster_fenced[kLanes] = {};
  i64 register_pool = 0;
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

enum ByteState : u8 { kUnwritten = 0, kWritten = 1, kInFlight = 2, kMbarrierObject = 4 };

// CTAs that run together, one without clusters.
struct Cluster {
  std::vector<Cta> ctas;
  std::vector<BulkLoad> loads;  // in flight
  u32 arrived = 0;              // barrier.cluster: threads
  u64 barrier_phase = 0;
};

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
  u32 cluster[3] = {1, 1, 1}, cluster_ctas = 1;
  bool check_bounds = true, check_init = true, check_races = true, check_proxy = true, random_schedule = false, random_async = false,
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
