// SPDX-License-Identifier: Apache-2.0
// Hooks of the shared-memory race checker.
#pragma once

#include "runtime.hpp"

namespace ptxsim {

inline void race_start(Cta&) {}
inline void race_barrier(Cta&, u32) {}
inline void race_read(Warp&, const Inst&, u32, u8* const*, u32) {}
inline void race_write(Warp&, const Inst&, u32, u8* const*, u32) {}

inline void race_async_issue(Warp&, const Inst&, u32, const u32*, u32) {}

}  // namespace ptxsim
