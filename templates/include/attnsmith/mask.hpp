// SPDX-License-Identifier: Apache-2.0
// Mask policies: which key blocks a query tile visits, which of them need masking, and the masking itself. A kernel
// names a policy and never a mask kind. Not responsible for loading or for softmax.
//
// A policy has
//   kLongestFirst                           whether later query tiles see more keys (a scheduling hint)
//   kHidesKeys                              whether a row may not see a key that another row of its tile sees
//   col_limit(row, seqlen)                  row sees exactly the columns [0, col_limit)
#pragma once

#include <cute/tensor.hpp>

#include "attnsmith/constants.hpp"
#include "attnsmith/layout.hpp"
#include "attnsmith/scheduler.hpp"

namespace attnsmith {

// Every row sees every key.
struct FullMask {
  static constexpr bool kLongestFirst = false;
  static constexpr bool kHidesKeys = false;
  CUTE_HOST_DEVICE static int col_limit(int /*row*/, Seqlen seqlen) { return seqlen.k; }
};

// Row i sees key j iff j <= i + seqlen_k - seqlen_q (bottom-right alignment).
struct CausalMask {
  static constexpr bool kLongestFirst = true;
  static constexpr bool kHidesKeys = true;
  CUTE_HOST_DEVICE static int col_limit(int row, Seqlen seqlen) {
    return cute::min(seqlen.k, row + 1 + seqlen.offset());
  }
};

// Key blocks [0, n_block_max) are visited, from the last to the first; those below n_block_full need no mask.
// col_limit does not decrease with the row, so the tile's last row bounds what is visited and its first row what is
// visible to all.
struct KeyBlockRange {
  int n_block_max;
  int n_block_full;
};

template <class Mask, int kBlockN>
CUTE_DEVICE KeyBlockRange key_block_range(int first_row, int num_rows, Seqlen seqlen) {
  int const last_row = cute::min(first_row + num_rows, seqlen.q) - 1;
  int const last_limit = cute::max(Mask::col_limit(last_row, seqlen), 0);
  int const first_limit = cute::max(Mask::col_limit(first_row, seqlen), 0);
  return {(last_limit + kBlockN - 1) / kBlockN, first_limit / kBlockN};
}

template <class Mask, int kBlockM, int kBlockN>
CUTE_DEVICE KeyBlockRange key_block_range(int m_block, Seqlen seqlen) {
  return key_block_range<Mask, kBlockN>(m_block * kBlockM, kBlockM, seqlen);
}

// Sets row mi's scores from column `limit` on to -inf. Columns count from the thread's first one, so that each is a
// compile-time number and an immediate of the compare.
template <class Scores>
CUTE_DEVICE void mask_row(Scores& scores, int mi, int limit) {
  CUTE_UNROLL
  for (int ni = 0; ni < cute::size<1>(scores); ++ni) {
    int const col = ni / 2 * 8 + ni % 2;
    scores(mi, ni) = col < limit ? scores(mi, ni) : negative_infinity();
  }
}

// Sets the scores of columns that a row does not see to -inf.
//   acc_s      accumulator fragment ((2,2),MMA_M,MMA_N) of the (kBlockM, kBlockN) score tile, m16n8 atoms, all of N in
//              one warp
//   tScS       its coordinates (row, col) within the tile, same shape
template <class Mask, class AccS, class Coords>
CUTE_DEVICE void apply_mask(AccS& acc_s, Coords const& tScS, int first_row, int first_col, Seqlen seqlen) {
  using namespace cute;
  Tensor scores = make_tensor(acc_s.data(), accumulator_rowcol(acc_s.layout()));
  Tensor coords = make_tensor(tScS.data(), accumulator_rowcol(tScS.layout()));
  CUTE_UNROLL
  for (int mi = 0; mi < size<0>(scores); ++mi) {
    int const limit = Mask::col_limit(first_row + get<0>(coords(mi, 0)), seqlen) - first_col - get<1>(coords(mi, 0));
    mask_row(scores, mi, limit);
  }
}

}  // namespace attnsmith
