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

// Descriptor of an operand in shared memory; PTX ISA, "Matrix descriptor". Address and both byte offsets in units of
// 16 bytes, bits 62-63 the swizzle.
//   leading  MN-major: from one box to the next. K-major: not read
//   stride   from one group of 8 rows to the next
template <int kRowBytes>
CUTE_DEVICE uint64_t matrix_descriptor(uint32_t smem_address, uint32_t leading_bytes) {
  static_assert(kRowBytes == 128 || kRowBytes == 64 || kRowBytes == 32, "a swizzle's span");
  constexpr uint32_t kSwizzle = kRowBytes == 128 ? 1 : kRowBytes == 64 ? 2 : 3;
  constexpr uint32_t kHigh = (8 * kRowBytes >> 4) | kSwizzle << 30;
  uint32_t const low = (smem_address >> 4) | (leading_bytes >> 4) << 16;
  return uint64_t(kHigh) << 32 | low;
}

// A K-major operand: kRows rows, each the reduction's depth of one tile.
template <int kRows, int kTileRowBytes>
struct KMajorTile {
  static constexpr int kRowBytes = box_row_bytes(kTileRowBytes);
  static constexpr int kBytes = kRows * kTileRowBytes;

  CUTE_DEVICE static uint64_t descriptor(uint32_t smem_address) { return matrix_descriptor<kRowBytes>(smem_address, 16); }

  // What to add to a descriptor for the k-th 32 bytes of depth (16 elements of 16 bits, 32 of 8).
  CUTE_DEVICE static constexpr uint64_t step(int k) {
    int const byte = 32 * k;
    return uint64_t(byte / kRowBytes * kRows * kRowBytes + byte % kRowBytes) >> 4;
  }
};

// An MN-major operand of 16-bit elements: kDepth rows, each the N extent of one tile.
template <int kDepth, int kTileRowBytes>
struct MnMajorTile {
  static constexpr int kRowBytes = box_row_bytes(kTileRowBytes);
  static constexpr int kBytes = kDepth * kTileRowBytes;

  CUTE_DEVICE static uint64_t descriptor(uint32_t smem_address) {
    return matrix_descriptor<kRowBytes>(smem_address, kDepth * kRowBytes);
  }

  // For the k-th 16 rows of depth.
  CUTE_DEVICE static constexpr uint64_t step(int k) { return uint64_t(16 * k * kRowBytes) >> 4; }
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
