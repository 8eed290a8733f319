// SPDX-License-Identifier: Apache-2.0
// Global <-> shared movement of 16-bit tiles on SM80: cp.async in, 16-byte stores out. Not responsible for waiting:
// the mainloop owns the order of commits and waits.
#pragma once

#include <cute/tensor.hpp>

#include "attnsmith/layout.hpp"
#include "attnsmith/scheduler.hpp"

namespace attnsmith::sm80 {

// 16 bytes to shared memory, past L1 (.cg): a tile's bytes are used once per CTA. A false predicate writes zeros and
// reads nothing.
CUTE_DEVICE void cp_async_16(uint32_t to, void const* from, bool is_valid) {
  int const src_size = is_valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(src_size) : "memory");
}

CUTE_DEVICE void cp_async_16(uint32_t to, void const* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

// How kNumThreads threads cover a (kRows, kCols) tile in 16-byte chunks: neighbouring threads take neighbouring chunks
// of one swizzle-atom row (a full 128-byte line when kCols % 64 == 0), then the next rows, then the next column atom.
template <class Element, int kRows, int kCols, int kNumThreads>
struct TileThreads {
  static constexpr int kChunk = 16 / int(sizeof(Element));
  static constexpr int kAtomCols = SmemTile<kRows, kCols>::kAtomCols;
  static constexpr int kThreadsPerRow = kAtomCols / kChunk;
  static constexpr int kRowsPerPass = kNumThreads / kThreadsPerRow;
  static constexpr int kNumPasses = (kRows + kRowsPerPass - 1) / kRowsPerPass;
  static constexpr int kNumColAtoms = kCols / kAtomCols;
  static constexpr bool kIsEven = kRows % kRowsPerPass == 0;  // else some threads idle in the last pass
  static_assert(kRowsPerPass % 8 == 0, "passes must be whole swizzle atoms, so that one offset serves all of them");

  CUTE_DEVICE static int row(int thread) { return thread / kThreadsPerRow; }
  CUTE_DEVICE static int col(int thread) { return thread % kThreadsPerRow * kChunk; }
};

// One thread's part of loading row blocks of a (rows, head_dim) matrix, last block first, into (kRows, kCols) tiles.
// The pointer walks with the blocks, so that a load costs additions and no multiplication.
template <class Element, int kRows, int kCols, int kNumThreads, bool kPadsHeadDim>
struct TileLoader {
  using Threads = TileThreads<Element, kRows, kCols, kNumThreads>;
  using Smem = SmemTile<kRows, kCols>;

  Element const* gmem;  // this thread's first chunk of the next row block
  int64_t row_stride;   // elements
  uint32_t smem_offset;  // of the first pass, bytes
  int head_dim;         // columns that exist

  CUTE_DEVICE TileLoader(void const* base, int64_t row_stride_, int head_dim_, int block, int thread)
      : row_stride(row_stride_), head_dim(head_dim_) {
    int const row = Threads::row(thread);
    int const col = Threads::col(thread);
    gmem = static_cast<Element const*>(base) + (int64_t(block) * kRows + row) * row_stride + col;
    smem_offset = typename Smem::Layout{}(row, col) * sizeof(Element);
  }

  // Loads the next block and steps to the one before it. kIsBounded: only the block's first num_rows rows exist, the
  // others become zeros.
  template <bool kIsBounded>
  CUTE_DEVICE void load(Element* smem, int num_rows = kRows) {
    uint32_t const to_base = cute::cast_smem_ptr_to_uint(smem) + smem_offset;
    // From indices read anew for each tile: two registers less across the main loop.
    int const row = kIsBounded || !Threads::kIsEven ? Threads::row(thread_index()) : 0;
    int const num_cols_left = kPadsHeadDim ? head_dim - Threads::col(thread_index()) : 0;
    Element const* from_row = gmem;
    CUTE_UNROLL
    for (int pass = 0; pass < Threads::kNumPasses; ++pass, from_row += Threads::kRowsPerPass * row_stride) {
      if (Threads::kIsEven || row + pass * Threads::kRowsPerPass < kRows) {
        CUTE_UNROLL
        for (int atom = 0; atom < Threads::kNumColAtoms; ++atom) {
          // Whole swizzle atoms apart, so the swizzle of the first chunk holds for all: a compile-time distance.
          constexpr auto layout = typename Smem::Layout{};
          uint32_t const to =
              to_base + layout(pass * Threads::kRowsPerPass, atom * Threads::kAtomCols) * uint32_t(sizeof(Element));
          Element const* from = from_row + atom * Threads::kAtomCols;
          if constexpr (kIsBounded || kPadsHeadDim) {
            bool const is_row = !kIsBounded || row + pass * Threads::kRowsPerPass < num_rows;
            bool const is_col = !kPadsHeadDim || atom * Threads::kAtomCols < num_cols_left;
            cp_async_16(to, from, is_row && is_col);
          } else {
            cp_async_16(to, from);
          }
        }
      }
    }
    gmem -= kRows * row_stride;
  }
};

// Writes a (kRows, kCols) shared tile to rows [block * kRows, num_rows) of a (rows, head_dim) matrix.
template <class Element, int kRows, int kCols, int kNumThreads, bool kPadsHeadDim>
CUTE_DEVICE void store_tile(Element const* smem, void* base, int64_t row_stride, int head_dim, int block, int num_rows,
                            int thread) {
  using Threads = TileThreads<Element, kRows, kCols, kNumThreads>;
  constexpr auto layout = typename SmemTile<kRows, kCols>::Layout{};
  int const row = Threads::row(thread);
  int const col = Threads::col(thread);
  int const smem_offset = layout(row, col);
  Element* gmem = static_cast<Element*>(base) + (int64_t(block) * kRows + row) * row_stride + col;
  int const rows_left = cute::min(num_rows - block * kRows, kRows) - row;
  CUTE_UNROLL
  for (int pass = 0; pass < Threads::kNumPasses; ++pass) {
    if (pass * Threads::kRowsPerPass >= rows_left) { break; }
    CUTE_UNROLL
    for (int atom = 0; atom < Threads::kNumColAtoms; ++atom) {
      if (kPadsHeadDim && atom * Threads::kAtomCols >= head_dim - col) { break; }
      auto const* src = smem + smem_offset + layout(pass * Threads::kRowsPerPass, atom * Threads::kAtomCols);
      auto* dst = gmem + pass * Threads::kRowsPerPass * row_stride + atom * Threads::kAtomCols;
      *reinterpret_cast<cute::uint128_t*>(dst) = *reinterpret_cast<cute::uint128_t const*>(src);
    }
  }
}

}  // namespace attnsmith::sm80
