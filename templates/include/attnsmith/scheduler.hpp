// SPDX-License-Identifier: Apache-2.0
// Which output tile a CTA computes, and the sequence lengths of its batch entry. Not responsible for which key blocks
// that tile visits: mask.hpp is.
#pragma once

#include <cute/tensor.hpp>

#include "attnsmith/params.hpp"

namespace attnsmith {

// Lengths of one batch entry.
struct Seqlen {
  int q;
  int k;

  // Bottom-right alignment: query row i sits at key position i + offset().
  CUTE_HOST_DEVICE int offset() const { return k - q; }
};

// Thread and CTA index, read anew at each call: the compiler keeps an ordinary read in a register across the main loop,
// where registers are scarce, although reading it again costs nothing.
CUTE_DEVICE int thread_index() {
  int thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return thread;
}

CUTE_DEVICE unsigned cta_index() {
  unsigned cta;
  asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(cta));
  return cta;
}

// Coordinates of one output tile.
struct TileCoord {
  int m_block;
  int head;
  int head_kv;
  int batch;
};

// One CTA per tile on a one-dimensional grid (y and z end at 65535, batch * nheads does not). m_block runs fastest, so
// that CTAs in flight together share a head's K and V in L2. kLongestFirst: under a causal mask the last rows have the
// most keys; starting them first leaves short tiles to fill the tail of the grid.
template <bool kLongestFirst>
struct SingleTileScheduler {
  CUTE_DEVICE static TileCoord tile(FwdParams const& params) {
    unsigned const num_m_blocks = params.num_m_blocks;
    unsigned const index = cta_index();
    unsigned const batch_head = index / num_m_blocks;
    unsigned const m = index - batch_head * num_m_blocks;
    unsigned const nheads = params.nheads_q;
    unsigned const batch = batch_head / nheads;
    unsigned const head = batch_head - batch * nheads;
    return {int(kLongestFirst ? num_m_blocks - 1 - m : m), int(head), int(head / unsigned(params.nheads_q_per_k)),
            int(batch)};
  }
};

}  // namespace attnsmith
