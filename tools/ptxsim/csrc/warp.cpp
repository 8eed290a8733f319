// SPDX-License-Identifier: Apache-2.0
// Warp state transitions: divergence by immediate post-dominator, exits, barriers, completion of cp.async, and the
// report that names every warp and barrier of a CTA. Not responsible for choosing which warp runs.
#include <algorithm>

#include "async.hpp"
#include "executor.hpp"
#include "memory.hpp"
#include "race.hpp"

namespace ptxsim {

void pop_finished(Warp& w) {
  for (;;) {
    if (w.active && w.pc != w.rpc) return;
    if (w.stack.empty()) {
      if (!w.active) w.state = WarpState::Done;
      return;
    }
    StackEntry top = w.stack.back();
    w.stack.pop_back();
    w.pc = top.pc, w.rpc = top.rpc, w.active = top.mask & w.alive;
  }
}

void branch(Warp& w, const Inst& i, u32 taken, u32 target) {
  u32 rest = w.active & ~taken;
  if (!rest) {
    w.pc = target;
    return;
  }
  ++w.worker->counters.divergent_branches;
  u32 reconv = i.reconv;
  if (reconv != kNoPc && reconv != w.rpc) w.stack.push_back({reconv, w.rpc, w.active});
  // Lanes whose next instruction is the reconvergence point wait in the entry that covers it.
  if (w.pc == reconv) {
    w.pc = target, w.active = taken;
  } else if (target == reconv) {
    w.active = rest;
  } else {
    w.stack.push_back({w.pc, reconv, rest});
    w.pc = target, w.active = taken;
  }
  w.rpc = reconv;
}

void branch_many(Warp& w, const Inst& i, u32 mask, const u32* targets) {
  std::vector<StackEntry> groups;
  if (u32 rest = w.active & ~mask) groups.push_back({w.pc, i.reconv, rest});
  for (u32 left = mask; left;) {
    u32 target = targets[__builtin_ctz(left)], same = 0;
    for (u32 k = left; k; k &= k - 1)
      if (targets[__builtin_ctz(k)] == target) same |= k & (0 - k);
    groups.push_back({target, i.reconv, same});
    left &= ~same;
  }
  if (groups.size() == 1) {
    w.pc = groups[0].pc;
    return;
  }
  ++w.worker->counters.divergent_branches;
  if (i.reconv != kNoPc && i.reconv != w.rpc) w.stack.push_back({i.reconv, w.rpc, w.active});
  for (const StackEntry& group : groups)
    if (group.pc != i.reconv) w.stack.push_back(group);
  w.active = 0;  // the run loop takes the first group from the stack
}

void exit_lanes(Warp& w, u32 mask) {
  w.alive &= ~mask;
  w.active &= ~mask;
  w.cta->live_threads -= static_cast<u32>(__builtin_popcount(mask));
}

namespace {

u32 barrier_goal(const Cta& cta, const BarrierState& b) {
  if (b.counted) return b.expected;
  u32 live = 0;  // whole warps, as the hardware counts
  for (const Warp& w : cta.warps)
    if (w.alive) live += kLanes;
  return live;
}

}  // namespace

void release_if_complete(Cta& cta, BarrierState& b) {
  if (!b.warps || b.arrived < barrier_goal(cta, b)) return;
  const Entry& entry = *cta.warps[0].worker->launch->entry;
  race_release(cta, b, b.waiting);
  for (Warp& w : cta.warps) {
    if (!(b.waiting >> w.id & 1)) continue;
    w.state = WarpState::Ready;
    if (const Inst& i = entry.insts[b.red_pc[w.id]]; i.width[0]) {  // bar.red: 1 popc, 2 and, 3 or
      u32 value = i.width[0] == 1 ? b.red_popc : i.width[0] == 2 ? b.red_and : b.red_or;
      u32 mask = w.active;
      if (i.width[0] == 1) {
        for (int l = 0; l < kLanes; ++l)
          if (mask >> l & 1) w.r32(i.o[0])[l] = value;
      } else {
        w.preds[i.o[0]] = (w.preds[i.o[0]] & ~mask) | (value ? mask : 0);
      }
    }
    pop_finished(w);
  }
  b = BarrierState();
}

void barrier_arrive(Warp& w, const Inst& i, u32 mask, u32 id, u32 count, bool wait) {
  if (id >= 16) throw_warp_error(w, i, mask, "launch", "barrier " + std::to_string(id) + " does not exist; 0 to 15 do");
  if (count % kLanes)
    throw_warp_error(w, i, mask, "launch",
                     "barrier thread count " + std::to_string(count) + " is not a multiple of 32");
  Cta& cta = *w.cta;
  const Entry& entry = *w.worker->launch->entry;
  auto report = [&] {
    w.pc = i.index;
    return "\n" + describe_warps(cta, entry);
  };
  if (mask != w.alive)
    throw_warp_error(w, i, mask, "deadlock",
                     "a barrier is reached by lanes " + hex(mask) + " of a warp whose live lanes are " + hex(w.alive) +
                         ": the others took another path" + report());
  BarrierState& b = cta.barriers[id];
  bool counted = count != 0;
  if (b.warps && (b.counted != counted || b.expected != count))
    throw_warp_error(w, i, mask, "deadlock",
                     "barrier " + std::to_string(id) + " is used with " + std::to_string(count) +
                         " threads while it waits for " + std::to_string(b.expected) + " (0: all)");
  if (b.warps >> w.id & 1)
    throw_warp_error(w, i, mask, "deadlock",
                     "warp " + std::to_string(w.id) + " arrives twice at barrier " + std::to_string(id) +
                         " before it completes" + report());
  b.counted = counted, b.expected = count;
  b.arrived += kLanes;
  b.warps |= 1u << w.id;
  race_arrive(w, b);
  if (wait) {
    b.waiting |= 1u << w.id;
    b.red_pc[w.id] = i.index;
    w.state = WarpState::AtBarrier;
    w.barrier = id;
    ++w.worker->counters.barrier_waits;
  }
  if (b.counted && b.arrived > b.expected)
    throw_warp_error(
        w, i, mask, "deadlock",
        "more threads arrive at barrier " + std::to_string(id) + " than its count, " + std::to_string(count));
  release_if_complete(cta, b);
}

void complete_copies(Warp& w, u32 lane_mask_, const u32* limit) {
  Cta& cta = *w.cta;
  size_t kept = 0;
  for (size_t n = 0; n < w.copies.size(); ++n) {
    PendingCopy& copy = w.copies[n];
    u32 landed = 0, changed = 0;
    for (u32 left = copy.mask & lane_mask_; left; left &= left - 1) {
      int l = __builtin_ctz(left);
      if (copy.group >= limit[l]) continue;
      u8* to = cta.smem.data() + copy.dst[l];
      u8 before[16];
      std::memcpy(before, to, copy.bytes);
      std::memcpy(to, reinterpret_cast<const void*>(copy.src[l]), copy.src_bytes[l]);
      std::memset(to + copy.src_bytes[l], 0, static_cast<size_t>(copy.bytes - copy.src_bytes[l]));
      std::memset(cta.smem_state.data() + copy.dst[l], kWritten, copy.bytes);
      landed |= 1u << l;
      if (std::memcmp(before, to, copy.bytes) != 0) changed |= 1u << l;
    }
    copy.mask &= ~landed;
    // Only now does the issuing thread know the bytes: other warps see them after a barrier that follows the wait.
    if (landed) race_write(w, w.worker->launch->entry->insts[copy.pc], landed, copy.dst, copy.bytes, changed);
    if (copy.mask) {
      if (kept != n) w.copies[kept] = copy;
      ++kept;
    }
  }
  w.copies.resize(kept);
}

std::string describe_warps(const Cta& cta, const Entry& entry) {
  std::string out;
  for (const Warp& w : cta.warps) {
    out += "  warp " + std::to_string(w.id) + ": ";
    if (w.state == WarpState::Done) {
      out += "exited\n";
      continue;
    }
    bool suspended = w.state == WarpState::AtMbarrier || w.state == WarpState::AtCluster;
    u32 at = suspended ? w.wait_pc : w.state == WarpState::AtBarrier && w.pc ? cta.barriers[w.barrier].red_pc[w.id] : w.pc;
    at = std::min<u32>(at, static_cast<u32>(entry.insts.size()) - 1);
    out += "PTX line " + std::to_string(entry.lines[at]) + ": " + entry.texts[at];
    if (w.active != kFullMask) out += "  [lanes " + hex(w.active) + "]";
    if (w.state == WarpState::AtMbarrier)
      out += "  [waits at the mbarrier at byte " + std::to_string(w.wait_address) + " for the end of phase " +
             std::to_string(w.wait_phase) + ", parity " + std::to_string(w.wait_phase & 1) + "]";
    if (w.state == WarpState::AtCluster) out += "  [waits at barrier.cluster]";
    if (w.state == WarpState::AtWarpgroup) out += "  [waits for the other warps of its warpgroup to issue the wgmma]";
    if (w.state == WarpState::AtSetmaxnreg)
      out += "  [waits for " + std::to_string(w.wait_phase) + " registers; the CTA's pool has " +
             std::to_string(cta.register_pool) + "]";
    if (w.state == WarpState::AtBarrier) out += "  [waits at barrier " + std::to_string(w.barrier) + "]";
    out += "\n";
  }
  for (u32 id = 0; id < 16; ++id) {
    const BarrierState& b = cta.barriers[id];
    if (!b.warps) continue;
    u32 goal = barrier_goal(cta, b);
    out += "  barrier " + std::to_string(id) + ": " + std::to_string(b.arrived) + " of " + std::to_string(goal) +
           " threads arrived; missing";
    if (b.counted) out += " " + std::to_string(goal - b.arrived) + " threads, from among";
    out += " warps";
    for (const Warp& w : cta.warps)
      if (!(b.warps >> w.id & 1)) out += " " + std::to_string(w.id) + (w.alive ? "" : " (exited)");
    out += "\n";
  }
  return out + describe_mbarriers(cta, entry);
}

}  // namespace ptxsim
