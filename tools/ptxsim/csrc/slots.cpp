// SPDX-License-Identifier: Apache-2.0
// Register file layout: where each virtual register's 32 lanes live.
#include "decode.hpp"

namespace ptxsim {

std::vector<u32> assign_register_slots(const RawEntry& raw, u32* words) {
  std::vector<u32> slots(raw.regs.size(), 0);
  for (size_t i = 0; i < raw.regs.size(); ++i) {
    if (raw.regs[i].type == Ty::Pred) continue;
    slots[i] = *words;
    *words += static_cast<u32>(type_width(raw.regs[i].type));
  }
  return slots;
}

}  // namespace ptxsim
