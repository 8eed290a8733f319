// SPDX-License-Identifier: Apache-2.0
// Shared-memory race checker: accesses of different warps to the same bytes, one of them a write, that no barrier
// orders. Independent of the schedule that happened to run: a removed barrier is found even when its effect is not.
// Not responsible for lanes of one warp (they execute in lockstep here) nor for global memory.
#pragma once

#include "runtime.hpp"

namespace ptxsim {

void race_start(Cta& cta);                                  // a CTA begins
void race_arrive(Warp& w, BarrierState& b);                 // release: what w did is published to b
void race_release(Cta& cta, BarrierState& b, u32 waiters);  // acquire: the waiters know what was published
void race_read(Warp& w, const Inst& i, u32 mask, const u32* offsets, u32 bytes);
// Lanes outside `changed` store the bytes that are there already: that conflicts with nobody.
void race_write(Warp& w, const Inst& i, u32 mask, const u32* offsets, u32 bytes, u32 changed);


// ---- the async proxy
void race_fence(Warp& w);           // fence.proxy.async: what w knows becomes visible to the async proxy
Clock race_clock(Warp& w);          // what w knows when it issues an asynchronous operation; w's later accesses are newer
void race_publish(Warp& w, u32* times, u32* fenced);              // release
void race_acquire(Warp& w, const u32* times, const u32* fenced);  // acquire
void race_merge(const Clock& clock, u32* times, u32* fenced);
// An asynchronous write of [offset, offset + bytes), a multiple of 16, that may happen at once.
void race_async_write(Warp& w, const Inst& i, int lane, u32 offset, u32 bytes);
// An asynchronous read that was issued at `clock` and is complete at `now`, on behalf of warp w.
void race_async_read(Warp& w, const Inst& i, const Clock& clock, u32 now, u32 offset, u32 bytes);
u32 race_tick(Cta& cta);  // a new time

}  // namespace ptxsim
