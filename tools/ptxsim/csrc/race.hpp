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

}  // namespace ptxsim
