// SPDX-License-Identifier: Apache-2.0
// Happens-before with one vector clock per warp. Times are drawn from one counter per CTA slot that never restarts, so
// cells of an earlier CTA are older than anything the next one knows and need no clearing. Shared memory is watched in
// granules of 16 bytes with byte masks; a granule remembers its last writer and the readers of one time. Forgetting
// older ones can miss a race, never invent one.
//
// A warp's own time advances at every barrier it arrives at. Waiters of one barrier continue with a common new time,
// so that their reads share a cell.
#include "race.hpp"

#include <algorithm>

#include "memory.hpp"

namespace ptxsim {
namespace {

[[noreturn]] void report(Warp& w, const Inst& i, int lane, u32 offset, const char* mine, u32 other, const char* theirs,
                         u32 pc) {
  const Entry& entry = *w.worker->launch->entry;
  throw_lane_error(w, i, lane, "race", offset,
                   "shared memory at byte " + std::to_string(offset) + ": warp " + std::to_string(w.id) + " " + mine +
                       " it, warp " + std::to_string(other) + " " + theirs + " it at PTX line " +
                       std::to_string(entry.lines[pc]) + " (" + entry.texts[pc] + "), and no barrier orders the two");
}

// Calls f(cell, bytes, changed bytes, lane) for the granules that the lanes touch; neighbouring lanes of one granule
// are joined. Accesses are aligned to their size, so one of at most 16 B lies in one granule.
template <class F>
inline void each_granule(Cta& cta, u32 mask, const u32* offsets, u32 bytes, u32 changed, F f) {
  const u32 one = bytes >= 16 ? 0xffffu : (1u << bytes) - 1;
  for (u32 step = 0; step < bytes; step += 16) {
    u32 granule = kNoPc, bits = 0, changed_bits = 0;
    int lane = 0;
    for (u32 left = mask; left; left &= left - 1) {
      int l = __builtin_ctz(left);
      u32 at = offsets[l] + step;
      if (at / 16 != granule) {
        if (bits) f(cta.race_cells[granule], static_cast<u16>(bits), static_cast<u16>(changed_bits), lane);
        granule = at / 16, bits = changed_bits = 0, lane = l;
      }
      u32 mine = one << (at % 16);
      bits |= mine;
      if (changed >> l & 1) changed_bits |= mine;
    }
    if (bits) f(cta.race_cells[granule], static_cast<u16>(bits), static_cast<u16>(changed_bits), lane);
  }
}

// A writer other than w whose last write w does not know of; kNoPc when there is none.
inline u32 unordered_writer(const RaceCell& c, const u32* known, u32 self) {
  for (u32 others = c.writers & ~(1u << self); others; others &= others - 1) {
    u32 u = static_cast<u32>(__builtin_ctz(others));
    if (c.write_time > known[u]) return u;
  }
  return kNoPc;
}

// As above, for bytes that w did not write itself (equal stores of several warps leave several writers).
inline u32 unseen_writer(const RaceCell& c, const u32* known, u32 self, u16 bytes) {
  if (!(c.write_bytes & bytes) || (c.writers >> self & 1)) return kNoPc;
  return unordered_writer(c, known, self);
}

}  // namespace

void race_start(Cta& cta) {
  u32 start = cta.race_time + 1;
  cta.race_time = start + 1;
  for (Warp& w : cta.warps) {
    std::fill(w.known_times, w.known_times + kLanes, start);
    std::fill(w.fenced_times, w.fenced_times + kLanes, start);
    w.known_times[w.id] = cta.race_time;
  }
}

void race_arrive(Warp& w, BarrierState& b) {
  for (int u = 0; u < kLanes; ++u) {
    b.times[u] = std::max(b.times[u], w.known_times[u]);
    b.fenced[u] = std::max(b.fenced[u], w.fenced_times[u]);
  }
  w.known_times[w.id] = ++w.cta->race_time;
}

void race_release(Cta& cta, BarrierState& b, u32 waiters) {
  u32 now = ++cta.race_time;
  for (Warp& w : cta.warps) {
    if (!(waiters >> w.id & 1)) continue;
    for (int u = 0; u < kLanes; ++u) {
      w.known_times[u] = std::max(w.known_times[u], b.times[u]);
      w.fenced_times[u] = std::max(w.fenced_times[u], b.fenced[u]);
    }
    w.known_times[w.id] = now;
  }
}

void race_read(Warp& w, const Inst& i, u32 mask, const u32* offsets, u32 bytes) {
  if (!w.worker->launch->check_races) return;
  const u32* known = w.known_times;
  const u32 self = w.id, now = known[self];
  each_granule(*w.cta, mask, offsets, bytes, 0, [&](RaceCell& c, u16 bits, u16, int lane) {
    u32 writer = unseen_writer(c, known, self, bits);
    if (__builtin_expect(writer != kNoPc, 0)) report(w, i, lane, offsets[lane], "reads", writer, "writes", c.write_pc);
    if (c.read_time == now) {
      c.readers |= 1u << self, c.read_bytes |= bits;
    } else if (c.read_time < now) {
      c.read_time = now, c.readers = 1u << self, c.read_bytes = bits, c.read_pc = i.index;
    }
  });
}

namespace {

void check_readers(Warp& w, const Inst& i, const RaceCell& c, u16 bits, int lane, u32 offset) {
  if (!(c.read_bytes & bits)) return;
  for (u32 others = c.readers & ~(1u << w.id); others; others &= others - 1) {
    u32 u = static_cast<u32>(__builtin_ctz(others));
    if (c.read_time > w.known_times[u]) report(w, i, lane, offset, "writes", u, "reads", c.read_pc);
  }
}

}  // namespace

void race_write(Warp& w, const Inst& i, u32 mask, const u32* offsets, u32 bytes, u32 changed) {
  if (!w.worker->launch->check_races) return;
  const u32* known = w.known_times;
  const u32 self = w.id, now = known[self];
  each_granule(*w.cta, mask, offsets, bytes, changed, [&](RaceCell& c, u16 bits, u16 changed_bits, int lane) {
    u32 writer = unseen_writer(c, known, self, changed_bits);
    if (__builtin_expect(writer != kNoPc, 0)) report(w, i, lane, offsets[lane], "writes", writer, "writes", c.write_pc);
    check_readers(w, i, c, changed_bits, lane, offsets[lane]);
    bool overlaps = c.write_bytes & bits, alters = c.write_bytes & changed_bits;
    if (overlaps && !alters && unordered_writer(c, known, self) != kNoPc) {
      c.writers |= 1u << self, c.write_bytes |= bits, c.write_time = std::min(c.write_time, now);
    } else if (c.write_time == now && c.writers == 1u << self) {
      c.write_bytes |= bits;
    } else {
      c.write_time = now, c.writers = 1u << self, c.write_bytes = bits;
    }
    c.write_pc = i.index, c.async_write = false;
  });
}

u32 race_tick(Cta& cta) { return ++cta.race_time; }

void race_fence(Warp& w) {
  for (int u = 0; u < kLanes; ++u) w.fenced_times[u] = std::max(w.fenced_times[u], w.known_times[u]);
  w.known_times[w.id] = ++w.cta->race_time;
}

Clock race_clock(Warp& w) {
  Clock clock;
  std::copy(w.known_times, w.known_times + kLanes, clock.known);
  std::copy(w.fenced_times, w.fenced_times + kLanes, clock.fenced);
  w.known_times[w.id] = ++w.cta->race_time;
  return clock;
}

void race_publish(Warp& w, u32* times, u32* fenced) {
  for (int u = 0; u < kLanes; ++u) {
    times[u] = std::max(times[u], w.known_times[u]);
    fenced[u] = std::max(fenced[u], w.fenced_times[u]);
  }
  w.known_times[w.id] = ++w.cta->race_time;
}

void race_acquire(Warp& w, const u32* times, const u32* fenced) {
  for (int u = 0; u < kLanes; ++u) {
    w.known_times[u] = std::max(w.known_times[u], times[u]);
    if (fenced) w.fenced_times[u] = std::max(w.fenced_times[u], fenced[u]);
  }
}

void race_merge(const Clock& clock, u32* times, u32* fenced) {
  for (int u = 0; u < kLanes; ++u) {
    times[u] = std::max(times[u], clock.known[u]);
    fenced[u] = std::max(fenced[u], clock.fenced[u]);
  }
}

void race_async_write(Warp& w, const Inst& i, int lane, u32 offset, u32 bytes) {
  if (!w.worker->launch->check_races) return;
  const u32* known = w.known_times;
  const u32 self = w.id, now = known[self];
  for (u32 at = offset & ~15u; at < offset + bytes; at += 16) {
    RaceCell& c = w.cta->race_cells[at / 16];
    if (c.write_bytes) {
      u32 writer = unordered_writer(c, known, self);
      if (__builtin_expect(writer != kNoPc, 0)) report(w, i, lane, at, "writes", writer, "writes", c.write_pc);
    }
    check_readers(w, i, c, 0xffff, lane, at);
    c.write_time = now, c.writers = 1u << self, c.write_bytes = 0xffff, c.write_pc = i.index, c.async_write = true;
  }
}

namespace {

[[noreturn]] void async_read_fault(Warp& w, const Inst& i, u32 at, u32 writer, const RaceCell& c, bool proxy) {
  const Entry& entry = *w.worker->launch->entry;
  std::string who = "shared memory at byte " + std::to_string(at) + ": warp " + std::to_string(writer) +
                    " writes it at PTX line " + std::to_string(entry.lines[c.write_pc]) + " (" +
                    entry.texts[c.write_pc] + ")";
  if (proxy)
    throw_lane_error(w, i, 0, "proxy", at,
                     who + " through the generic proxy and this instruction reads it through the async proxy; " +
                         "fence.proxy.async is missing between the two");
  throw_lane_error(w, i, 0, "race", at,
                   who + ", this instruction reads it asynchronously, and nothing orders the write before this " +
                       "instruction or after its completion");
}

}  // namespace

void race_async_read(Warp& w, const Inst& i, const Clock& clock, u32 now, u32 offset, u32 bytes) {
  const Launch& launch = *w.worker->launch;
  if (!launch.check_races) return;
  const u32 self = w.id;
  for (u32 at = offset & ~15u; at < offset + bytes; at += 16) {
    RaceCell& c = w.cta->race_cells[at / 16];
    if (c.write_bytes) {
      for (u32 left = c.writers; left; left &= left - 1) {
        u32 u = static_cast<u32>(__builtin_ctz(left));
        if (__builtin_expect(c.write_time > clock.known[u], 0)) async_read_fault(w, i, at, u, c, false);
        if (__builtin_expect(!c.async_write && launch.check_proxy && c.write_time > clock.fenced[u], 0))
          async_read_fault(w, i, at, u, c, true);
      }
    }
    if (c.read_time == now)
      c.readers |= 1u << self, c.read_bytes = 0xffff;
    else
      c.read_time = now, c.readers = 1u << self, c.read_bytes = 0xffff, c.read_pc = i.index;
  }
}

}  // namespace ptxsim
