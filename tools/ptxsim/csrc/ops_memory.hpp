// SPDX-License-Identifier: Apache-2.0
// Reading the modifiers and addresses that memory instructions of several families share.
#pragma once

#include "ops_shared.hpp"

namespace ptxsim {

bool take_space_suffix(Decoding&, Space* space);  // .global, .shared::cta, ...; Generic when none
bool take_cache_hints(Decoding&);                 // true when .L2::cache_hint adds an operand
bool take_ordering(Decoding&);                    // .relaxed.gpu and the like; true for other than weak accesses

// Slot of the base address of [base+offset]; Inst::imm becomes the offset, *width 32 or 64.
u32 address_slot(Decoding&, const Operand& op, Space* space, u8* width);
void lane_addresses(const Warp& w, const Inst& i, u32 slot, u8 width, i64 offset, u64* out);

}  // namespace ptxsim
