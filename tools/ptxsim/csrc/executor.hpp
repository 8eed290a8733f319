// SPDX-License-Identifier: Apache-2.0
// Warp control that instruction families call: branches, exits, barriers, cp.async completion.
#pragma once

#include "runtime.hpp"

namespace ptxsim {

// Branch of the lanes in `taken`; the others of w.active fall through to w.pc.
void branch(Warp& w, const Inst& i, u32 taken, u32 target);
// Branch of all lanes in `mask` (every active lane or fewer) to one target each.
void branch_many(Warp& w, const Inst& i, u32 mask, const u32* targets);
void exit_lanes(Warp& w, u32 mask);

// Takes up the next path of the SIMT stack when the current one has reached its reconvergence point or has no lanes.
void pop_finished(Warp& w);

// Releases the waiters when everybody has arrived.
void release_if_complete(Cta& cta, BarrierState& b);

// A warp arrives at barrier `id` of its CTA. count 0 means every thread that has not exited.
void barrier_arrive(Warp& w, const Inst& i, u32 mask, u32 id, u32 count, bool wait);

// Completes the copies of `lanes` whose group number is below limit[lane].
void complete_copies(Warp& w, u32 lanes, const u32* limit);

std::string describe_warps(const Cta& cta, const Entry& entry);  // and barriers, mbarriers

}  // namespace ptxsim
