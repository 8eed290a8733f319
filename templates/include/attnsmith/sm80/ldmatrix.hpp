// SPDX-License-Identifier: Apache-2.0
// Shared memory -> MMA operand registers on SM80, by ldmatrix.x4.
// Not responsible for the layout of the tile: SmemTile is.
#pragma once

#include <cute/tensor.hpp>

#include "attnsmith/layout.hpp"

namespace attnsmith::sm80 {

// Four 8x8 matrices; lane l gives the address of row l % 8 of matrix l / 8.
CUTE_DEVICE void ldmatrix_x4(uint32_t (&dst)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.x4.m8n8.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(dst[0]), "=r"(dst[1]), "=r"(dst[2]), "=r"(dst[3])
               : "r"(address));
}

CUTE_DEVICE void ldmatrix_x4_trans(uint32_t (&dst)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.x4.trans.m8n8.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(dst[0]), "=r"(dst[1]), "=r"(dst[2]), "=r"(dst[3])
               : "r"(address));
}

// The 16x16 blocks of a (kRows, kCols) tile of 16-bit elements, one ldmatrix.x4 each.
//   kRowsFirst: matrices 0..3 are (rows 0-7, cols 0-7), (rows 8-15, cols 0-7), (0-7, 8-15), (8-15, 8-15), the order of
//   an A operand, and with .trans of two B operands; otherwise columns first: two B operands of a K-major tile.
template <int kRows, int kCols, bool kRowsFirst>
struct MatrixBlocks {
  using Smem = SmemTile<kRows, kCols>;

  // Byte address of this lane's row of block (0, 0); add row_offset rows first where a warp does not start at row 0.
  CUTE_DEVICE static uint32_t lane_offset(int lane, int row_offset = 0) {
    int const low = lane / 8 % 2 * 8, high = lane / 16 * 8;
    int const row = row_offset + lane % 8 + (kRowsFirst ? low : high);
    int const col = kRowsFirst ? high : low;
    return typename Smem::Layout{}(row, col) * 2;
  }

  // Address of this lane's row of block (row_block, col_block), from that of block (0, 0). Within a swizzle atom a
  // 16-column step flips address bits (the tile is aligned to its atom, so this is exact); whole atoms and 16-row steps
  // are plain distances, which the compiler turns into the instruction's immediate.
  CUTE_DEVICE static uint32_t address(uint32_t base, int row_block, int col_block) {
    int const col = col_block * 16;
    int const atom_col = col / Smem::kAtomCols * Smem::kAtomCols;
    return (base ^ uint32_t((col - atom_col) * 2)) + uint32_t(typename Smem::Layout{}(row_block * 16, atom_col) * 2);
  }
};

}  // namespace attnsmith::sm80
