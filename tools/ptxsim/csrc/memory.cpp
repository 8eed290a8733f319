// SPDX-License-Identifier: Apache-2.0
// Slow paths and error texts of memory access.
#include "memory.hpp"

#include <algorithm>

#include "async.hpp"

namespace ptxsim {

void throw_lane_error(Warp& w, const Inst& i, int lane, const char* kind, u64 address, const std::string& what) {
  SimError error(kind, what);
  error.line = w.worker->launch->entry->lines[i.index];
  error.text = w.worker->launch->entry->texts[i.index];
  error.thread = static_cast<int>(w.id) * kLanes + lane;
  error.has_address = true;
  error.address = address;
  throw error;
}

void throw_warp_error(Warp& w, const Inst& i, u32 mask, const char* kind, const std::string& what) {
  SimError error(kind, what);
  error.line = w.worker->launch->entry->lines[i.index];
  error.text = w.worker->launch->entry->texts[i.index];
  error.thread = static_cast<int>(w.id) * kLanes + (mask ? __builtin_ctz(mask) : 0);
  throw error;
}

namespace {

i64 distance_to(const Allocation& a, u64 address) {
  if (address < a.base) return static_cast<i64>(a.base - address);
  if (address >= a.base + a.bytes) return static_cast<i64>(address - (a.base + a.bytes)) + 1;
  return 0;
}

[[noreturn]] void global_fault(Warp& w, const Inst& i, int lane, u64 address, u32 bytes, Access access) {
  const Allocation* nearest = nullptr;
  for (const Allocation& a : w.worker->launch->allocations)
    if (!a.internal && (!nearest || distance_to(a, address) < distance_to(*nearest, address))) nearest = &a;
  std::string what = access == Access::Read ? "read" : access == Access::Write ? "write" : "atomic access";
  what += " of " + std::to_string(bytes) + " B at global address " + hex(address) + " is outside every allocation";
  SimError error("memory", what);
  if (nearest) {
    i64 d = distance_to(*nearest, address);
    error.nearest = nearest->name, error.distance = d;
    i64 inside = static_cast<i64>(address - nearest->base);
    error.message += "; nearest is '" + nearest->name + "' (" + std::to_string(nearest->bytes) + " B at " +
                     hex(nearest->base) + "), byte " + std::to_string(inside) + " of it, " +
                     (d ? std::to_string(d) + " B outside" : "running over its end");
  } else {
    error.message += "; the launch has no allocations";
  }
  error.line = w.worker->launch->entry->lines[i.index];
  error.text = w.worker->launch->entry->texts[i.index];
  error.thread = static_cast<int>(w.id) * kLanes + lane;
  error.has_address = true, error.address = address;
  throw error;
}

}  // namespace

u8* global_slow(Warp& w, const Inst& i, int lane, u64 address, u32 bytes, Access access) {
  Launch& launch = *w.worker->launch;
  auto next = std::upper_bound(launch.allocations.begin(), launch.allocations.end(), address,
                               [](u64 value, const Allocation& a) { return value < a.base; });
  // Ranges may overlap or repeat: look back over every range that starts at or before the address.
  for (auto it = next; it != launch.allocations.begin();) {
    --it;
    if (address - it->base < it->bytes && address - it->base + bytes <= it->bytes) {
      if (access != Access::Read && !it->writable) {
        bool other = false;
        for (const Allocation& a : launch.allocations)
          other = other || (a.writable && address >= a.base && address - a.base + bytes <= a.bytes);
        if (!other)
          throw_lane_error(
              w, i, lane, "memory", address,
              "write to '" + it->name + "', which is read-only, at byte " + std::to_string(address - it->base));
        continue;
      }
      w.worker->cached.base = it->base, w.worker->cached.bytes = it->bytes, w.worker->cached.writable = it->writable;
      return reinterpret_cast<u8*>(address);
    }
  }
  if (!launch.check_bounds) return reinterpret_cast<u8*>(address);
  global_fault(w, i, lane, address, bytes, access);
}

u8* global_range(Warp& w, const Inst& i, int lane, u64 address, u64 bytes, Access access) {
  const Allocation& a = w.worker->cached;
  if (address - a.base < a.bytes && address - a.base + bytes <= a.bytes && (a.writable || access == Access::Read))
    return reinterpret_cast<u8*>(address);
  return global_slow(w, i, lane, address, static_cast<u32>(bytes), access);
}

// Another CTA's shared memory. Races across CTAs are not looked for.
u8* cluster_ptr(Warp& w, const Inst& i, int lane, u64 address, u32 bytes, Access access) {
  SharedPlace p = cluster_place(w, i, lane, address);
  if (p.cta == w.cta) return shared_ptr(w, i, lane, p.offset, bytes, access);
  check_aligned(w, i, lane, p.offset, bytes);
  std::string what = "byte " + std::to_string(p.offset) + " of CTA rank " + std::to_string(p.cta->rank);
  if (static_cast<u64>(p.offset) + bytes > p.cta->smem.size())
    throw_lane_error(w, i, lane, "memory", p.offset, what + " is outside its shared memory");
  u8* state = p.cta->smem_state.data() + p.offset;
  for (u32 k = 0; k < bytes; ++k) {
    if (state[k] & (kInFlight | kMbarrierObject))
      throw_lane_error(w, i, lane, "race", p.offset,
                       what + (state[k] & kInFlight ? " will be written by an asynchronous copy still in flight"
                                                    : " belongs to an mbarrier object"));
    if (access != Access::Write && w.worker->launch->check_init && state[k] != kWritten)
      throw_lane_error(w, i, lane, "uninitialized", p.offset, "reads " + what + ", which nothing has written");
  }
  if (access != Access::Read) {
    std::memset(state, kWritten, bytes);
    for (u32 at = p.offset / 16; at <= (p.offset + bytes - 1) / 16; ++at)
      p.cta->race_cells[at].write_bytes = p.cta->race_cells[at].read_bytes = 0;
  }
  return p.cta->smem.data() + p.offset;
}

void in_flight_fault(Warp& w, const Inst& i, int lane, u64 offset) {
  for (u64 k = offset; k < offset + 32 && k < w.cta->smem_state.size(); ++k)
    if (w.cta->smem_state[k] & kMbarrierObject)
      throw_lane_error(w, i, lane, "mbarrier", k,
                       "writes shared-memory byte " + std::to_string(k) + ", which belongs to an mbarrier object: " +
                           "mbarrier.inval must come first");
  throw_lane_error(w, i, lane, "race", offset,
                   "writes shared-memory byte " + std::to_string(offset) +
                       ", which an asynchronous copy still in flight will write too: no wait orders the two");
}

void shared_fault(Warp& w, const Inst& i, int lane, u64 offset, u32 bytes) {
  Cta& cta = *w.cta;
  u64 size = cta.smem.size();
  if (offset >= size || offset + bytes > size)
    throw_lane_error(w, i, lane, "memory", offset,
                     "shared-memory access of " + std::to_string(bytes) + " B at offset " + std::to_string(offset) +
                         " is outside the CTA's " + std::to_string(size) + " B");
  for (u64 k = offset; k < offset + bytes; ++k)
    if (cta.smem_state[k] & kMbarrierObject)
      throw_lane_error(w, i, lane, "mbarrier", k,
                       "reads shared-memory byte " + std::to_string(k) + ", which belongs to an mbarrier object");
  bool in_flight = false;
  u64 first = offset;
  for (u64 k = offset + bytes; k-- > offset;)
    if (cta.smem_state[k] != kWritten) first = k, in_flight = cta.smem_state[k] == kInFlight;
  throw_lane_error(w, i, lane, "uninitialized", first,
                   in_flight ? "reads shared-memory byte " + std::to_string(first) +
                                   ", which an asynchronous copy still in flight will write: no wait guarantees it yet"
                             : "reads shared-memory byte " + std::to_string(first) + ", which nothing has written");
}

}  // namespace ptxsim
