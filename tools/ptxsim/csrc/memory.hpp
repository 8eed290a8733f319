// SPDX-License-Identifier: Apache-2.0
// Every access to simulated memory goes through here: allocation bounds, alignment, initialized bytes of shared
// memory, generic windows. Not responsible for what is done with the bytes.
#pragma once

#include "runtime.hpp"

namespace ptxsim {

enum class Access : u8 { Read, Write, ReadWrite };

[[noreturn]] void throw_lane_error(Warp& w, const Inst& i, int lane, const char* kind, u64 address,
                                   const std::string& what);
[[noreturn]] void throw_warp_error(Warp& w, const Inst& i, u32 mask, const char* kind, const std::string& what);
u8* global_slow(Warp& w, const Inst& i, int lane, u64 address, u32 bytes, Access access);
[[noreturn]] void in_flight_fault(Warp& w, const Inst& i, int lane, u64 offset);
u8* global_range(Warp& w, const Inst& i, int lane, u64 address, u64 bytes, Access access);  // any alignment
[[noreturn]] void shared_fault(Warp& w, const Inst& i, int lane, u64 offset, u32 bytes);

inline void check_aligned(Warp& w, const Inst& i, int lane, u64 address, u32 bytes) {
  if (__builtin_expect((address & (bytes - 1)) != 0, 0))
    throw_lane_error(
        w, i, lane, "misaligned", address,
        "address " + hex(address) + " is not a multiple of the access size, " + std::to_string(bytes) + " B");
}

inline u8* global_ptr(Warp& w, const Inst& i, int lane, u64 address, u32 bytes, Access access) {
  check_aligned(w, i, lane, address, bytes);
  const Allocation& a = w.worker->cached;
  if (__builtin_expect(
          address - a.base < a.bytes && address - a.base + bytes <= a.bytes && (a.writable || access == Access::Read),
          1))
    return reinterpret_cast<u8*>(address);
  return global_slow(w, i, lane, address, bytes, access);
}

// All bytes of [offset, offset + bytes) must be kWritten.
inline bool bytes_written(const u8* state, u32 bytes) {
  constexpr u64 kOnes = 0x0101010101010101ull;
  if (bytes == 16) {
    u64 a, b;
    std::memcpy(&a, state, 8), std::memcpy(&b, state + 8, 8);
    return a == kOnes && b == kOnes;
  }
  if (bytes == 8) {
    u64 a;
    std::memcpy(&a, state, 8);
    return a == kOnes;
  }
  if (bytes == 4) {
    u32 a;
    std::memcpy(&a, state, 4);
    return a == static_cast<u32>(kOnes);
  }
  for (u32 k = 0; k < bytes; ++k)
    if (state[k] != kWritten) return false;
  return true;
}

// Marks stored bytes as written. A store to bytes that a pending cp.async will write has no defined outcome.
inline void mark_written(Warp& w, const Inst& i, int lane, u64 offset, u32 bytes) {
  u8* state = w.cta->smem_state.data() + offset;
  u32 in_flight = 0;
  for (u32 k = 0; k < bytes; ++k) in_flight |= state[k] & (kInFlight | kMbarrierObject);
  if (__builtin_expect(in_flight != 0, 0) && w.worker->launch->check_races) in_flight_fault(w, i, lane, offset);
  std::memset(state, kWritten, bytes);
}

inline u8* shared_ptr(Warp& w, const Inst& i, int lane, u64 offset, u32 bytes, Access access) {
  check_aligned(w, i, lane, offset, bytes);
  Cta& cta = *w.cta;
  u64 size = cta.smem.size();
  if (__builtin_expect(offset >= size || offset + bytes > size, 0)) shared_fault(w, i, lane, offset, bytes);
  u8* state = cta.smem_state.data() + offset;
  if (access != Access::Write) {
    if (w.worker->launch->check_init && __builtin_expect(!bytes_written(state, bytes), 0))
      shared_fault(w, i, lane, offset, bytes);
  } else {
    mark_written(w, i, lane, offset, bytes);
  }
  return cta.smem.data() + offset;
}

u8* cluster_ptr(Warp& w, const Inst& i, int lane, u64 address, u32 bytes, Access access);  // shared::cluster

inline u8* local_ptr(Warp& w, const Inst& i, int lane, u64 offset, u32 bytes) {
  check_aligned(w, i, lane, offset, bytes);
  u64 size = w.worker->launch->entry->local_bytes;
  if (__builtin_expect(offset >= size || offset + bytes > size, 0))
    throw_lane_error(w, i, lane, "memory", offset,
                     "local address " + hex(offset) + " is outside the thread's " + std::to_string(size) + " B frame");
  return w.local + static_cast<u64>(lane) * size + offset;
}

// Which window a generic address falls into; *address becomes the address inside it.
inline Space resolve_generic(u64* address) {
  if (*address >= kLocalWindow && *address < kLocalWindow + kWindowBytes) return *address -= kLocalWindow, Space::Local;
  if (*address >= kSharedWindow && *address < kSharedWindow + kWindowBytes)
    return *address -= kSharedWindow, Space::Shared;
  return Space::Global;
}

inline u8* space_ptr(Warp& w, const Inst& i, int lane, Space space, u64 address, u32 bytes, Access access) {
  if (space == Space::Generic) space = resolve_generic(&address);
  switch (space) {
    case Space::Shared:
    case Space::Cluster:
      if (address >> kClusterShift) return cluster_ptr(w, i, lane, address, bytes, access);
      return shared_ptr(w, i, lane, address, bytes, access);
    case Space::Local:
      return local_ptr(w, i, lane, address, bytes);
    default:
      return global_ptr(w, i, lane, address, bytes, access);
  }
}

}  // namespace ptxsim
