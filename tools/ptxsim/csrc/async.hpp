// SPDX-License-Identifier: Apache-2.0
// Hopper's asynchronous machinery that several families and the scheduler share: addresses in a cluster, mbarriers,
// bulk copies in flight, wgmma completion. Not responsible for decoding.
#pragma once

#include "runtime.hpp"

namespace ptxsim {

struct SharedPlace {
  Cta* cta;
  u32 offset;
};
SharedPlace cluster_place(Warp& w, const Inst& i, int lane, u64 address);

// ---- mbarriers
Mbarrier& find_mbarrier(Warp& w, const Inst& i, int lane, Cta& cta, u32 offset);
// `count` arrivals after `expect` more bytes; by warp w of the same CTA, or from elsewhere (publishes nothing).
void mbarrier_arrive(Warp& w, const Inst& i, int lane, Cta& cta, u32 offset, u32 count, i64 expect);
void mbarrier_complete_tx(Cta& cta, u32 offset, const Clock* clock, u32 bytes);
std::string describe_mbarriers(const Cta& cta, const Entry& entry);

// ---- bulk copies
void land_bulk_load(Cluster& cluster, size_t index);
// Reads (and, with `write`, also writes) the stores of `lanes` whose group number is below limit[lane].
void complete_stores(Warp& w, const Inst& i, u32 lanes, const u32* limit, bool write);
void finish_stores(Warp& w);  // the warp has exited

// ---- wgmma
constexpr u32 kWarpgroupWarps = 4;
void check_touches(Warp& w, const Inst& i);
void run_matrix_ops(Warp& w, Warpgroup& group, u64 end);  // all operations below number `end`
void wake_warpgroup(Cta& cta, u32 first_warp);
void finish_matrix_ops(Warp& w);  // the warp has exited

// ---- clusters, registers
void release_cluster_if_complete(Cluster& cluster);
void wake(Warp& w);  // a suspended warp continues
void suspend_and_retry(Warp& w, const Inst& i, u32 mask, WarpState state);  // it executes i again when it continues
u32 entry_registers(const Launch& launch);

}  // namespace ptxsim
