// SPDX-License-Identifier: Apache-2.0
// Around wgmma.mma_async: shared-memory matrix descriptors, and the fence, commit and wait of the asynchronous groups.
// The instruction itself is rendered into each kernel, one struct per shape. Not responsible for filling shared memory.
#pragma once

#include <cute/config.hpp>

#include "attnsmith/sm90/params.hpp"

namespace attnsmith::sm90 {

// Shared-memory tiles are columns of boxes as TMA writes them: rows of kRowBytes (32, 64 or 128: the swizzle's span),
// all rows of the tile, then the next kRowBytes of each row. In a row, 16-byte chunk c lies at c xor (bits 7.. of the
// row's address).
template <int kRowBytes>
CUTE_DEVICE constexpr uint32_t swizzled(uint32_t offset) {
  return offset ^ (offset >> 3 & (kRowBytes - 16));
}

// Descriptor of an operand in shared memory; PTX ISA, "Matrix descriptor". The low word has the address and, for MN-major
// operands, the distance from one box to the next; the high word the distance from one group of 8 rows to the next and
// the swizzle. Addresses and distances in units of 16 bytes. Shared memory ends below 2^18, so that stepping through an
// operand changes nothing but the address bits of the low word: 32-bit arithmetic is enough.
template <int kRowBytes>
constexpr uint32_t descriptor_high() {
  static_assert(kRowBytes == 128 || kRowBytes == 64 || kRowBytes == 32, "a swizzle's span");
  return (8 * kRowBytes >> 4) | (kRowBytes == 128 ? 1u : kRowBytes == 64 ? 2u : 3u) << 30;
}

// A K-major operand: kRows rows, each the reduction's depth of one tile.
template <int kRows, int kTileRowBytes>
struct KMajorTile {
  static constexpr int kRowBytes = box_row_bytes(kTileRowBytes);
  static constexpr int kBytes = kRows * kTileRowBytes;
  static constexpr uint32_t kDescriptorHigh = descriptor_high<kRowBytes>();

  // Low word for the k-th 32 bytes of depth (16 elements of 16 bits, 32 of 8).
  CUTE_DEVICE static uint32_t descriptor(uint32_t smem_address, int k) {
    int const byte = 32 * k;
    return (smem_address >> 4 | 1u << 16) + ((byte / kRowBytes * kRows * kRowBytes + byte % kRowBytes) >> 4);
  }
};

// An MN-major operand of 16-bit elements: kDepth rows, each the N extent of one tile.
template <int kDepth, int kTileRowBytes>
struct MnMajorTile {
  static constexpr int kRowBytes = box_row_bytes(kTileRowBytes);
  static constexpr int kBytes = kDepth * kTileRowBytes;
  static constexpr uint32_t kDescriptorHigh = descriptor_high<kRowBytes>();

  // Low word for the k-th 16 rows of depth.
  CUTE_DEVICE static uint32_t descriptor(uint32_t smem_address, int k) {
    return (smem_address >> 4 | uint32_t(kDepth * kRowBytes >> 4) << 16) + (16 * k * kRowBytes >> 4);
  }
};

// Orders a warpgroup's register accesses before the wgmmas that follow.
CUTE_DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

CUTE_DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Until at most kPending of the committed groups are unfinished. Afterwards their accumulators may be read, and what
// they read from shared memory may be overwritten.
template <int kPending>
CUTE_DEVICE void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Keeps the compiler from moving reads or writes of accumulators across this point.
template <class Fragment>
CUTE_DEVICE void pin_registers(Fragment& fragment) {
  CUTE_UNROLL
  for (int i = 0; i < cute::size(fragment); ++i) { asm volatile("" : "+f"(fragment(i))::"memory"); }
}

}  // namespace attnsmith::sm90
