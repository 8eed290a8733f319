// SPDX-License-Identifier: Apache-2.0
// How a CTA's producer and consumers come by output tiles: one tile, tiles dealt out in turn, or tiles from a counter.
// Not responsible for which keys a row sees: mask.hpp is.
#pragma once

#include "attnsmith/mask.hpp"
#include "attnsmith/scheduler.hpp"
#include "attnsmith/sm90/barriers.hpp"
#include "attnsmith/sm90/params.hpp"
#include "attnsmith/sm90/storage.hpp"

namespace attnsmith::sm90 {

CUTE_DEVICE unsigned num_ctas() {
  unsigned count;
  asm volatile("mov.u32 %0, %%nctaid.x;" : "=r"(count));
  return count;
}

// Rows of a query tile. Unpacked: query rows. Packed: (query, head of the key head's group), the head running fastest,
// in slabs of 64 / group queries, one per warpgroup; rows of a slab beyond that are not used.
template <class Traits>
struct QueryRows {
  CUTE_DEVICE static int queries_per_warpgroup(FwdParams const& params) {
    return Traits::kPacksGqa ? kRowsPerWarpgroup / params.nheads_q_per_k : kRowsPerWarpgroup;
  }
  CUTE_DEVICE static int first_query(FwdParams const& params, int m_block, int warpgroup) {
    return (m_block * Traits::kNumWarpgroups + warpgroup) * queries_per_warpgroup(params);
  }
};

// Key blocks that a query tile visits.
template <class Traits>
CUTE_DEVICE KeyBlockRange tile_range(FwdParams const& params, int m_block) {
  Seqlen const seqlen{params.seqlen_q, params.seqlen_k};
  int const first_row = QueryRows<Traits>::first_query(params, m_block, 0);
  int const num_rows = Traits::kNumWarpgroups * QueryRows<Traits>::queries_per_warpgroup(params);
  return key_block_range<typename Traits::Mask, Traits::kBlockN>(first_row, num_rows, seqlen);
}

// Tile number -> coordinates. m_block runs fastest where all tiles are equally long, so that CTAs in flight together
// share a head's K and V in L2. Where later query tiles see more keys, they come first, of as many heads at a time as
// have room for their K and V in L2. Packed: `head` is the first query head of the group.
template <class Traits>
CUTE_DEVICE TileCoord tile_coord(FwdSm90Params const& params, unsigned index) {
  unsigned const num_m_blocks = params.fwd.num_m_blocks;
  unsigned const nheads = Traits::kPacksGqa ? params.fwd.nheads_k : params.fwd.nheads_q;
  unsigned pair, m_block;
  if constexpr (Traits::Mask::kLongestFirst) {
    unsigned const num_pairs = nheads * params.fwd.batch;
    unsigned const group_pairs = params.num_heads_per_l2;
    unsigned const group = index / (group_pairs * num_m_blocks);
    unsigned const in_group = index - group * group_pairs * num_m_blocks;
    unsigned const pairs = cute::min(group_pairs, num_pairs - group * group_pairs);
    unsigned const m = in_group / pairs;
    pair = group * group_pairs + in_group - m * pairs;
    m_block = num_m_blocks - 1 - m;
  } else {
    pair = index / num_m_blocks;
    m_block = index - pair * num_m_blocks;
  }
  unsigned const batch = pair / nheads;
  unsigned const head = pair - batch * nheads;
  unsigned const group_size = params.fwd.nheads_q_per_k;
  if constexpr (Traits::kPacksGqa) { return {int(m_block), int(head * group_size), int(head), int(batch)}; }
  return {int(m_block), int(head), int(head / group_size), int(batch)};
}

// The schedulers' common form: begin() gives the first tile, next() the one after; a tile number of at least
// params.num_tiles ends the loop. Producer and consumers see the same sequence.

// One CTA per tile.
template <class Traits>
struct SingleScheduler {
  template <class Storage>
  CUTE_DEVICE SingleScheduler(Storage&, FwdSm90Params const&) {}
  CUTE_DEVICE unsigned produce_first(FwdSm90Params const&) { return cta_index(); }
  CUTE_DEVICE unsigned produce_next(FwdSm90Params const& params) { return params.num_tiles; }
  CUTE_DEVICE unsigned consume_first(FwdSm90Params const&) { return cta_index(); }
  CUTE_DEVICE unsigned consume_next(FwdSm90Params const& params) { return params.num_tiles; }
  CUTE_DEVICE void finish(FwdSm90Params const&) {}
};

// Persistent: tiles dealt out in turn.
template <class Traits>
struct StaticScheduler {
  unsigned tile;

  template <class Storage>
  CUTE_DEVICE StaticScheduler(Storage&, FwdSm90Params const&) : tile(cta_index()) {}
  CUTE_DEVICE unsigned produce_first(FwdSm90Params const&) { return tile; }
  CUTE_DEVICE unsigned produce_next(FwdSm90Params const&) { return tile += num_ctas(); }
  CUTE_DEVICE unsigned consume_first(FwdSm90Params const&) { return tile; }
  CUTE_DEVICE unsigned consume_next(FwdSm90Params const&) { return tile += num_ctas(); }
  CUTE_DEVICE void finish(FwdSm90Params const&) {}
};

// Persistent: the producer takes the next tile from a counter and hands its number to the consumers through a ring. The
// counter is zero before the launch and, because the last CTA to finish resets it, after it.
template <class Traits>
struct DynamicScheduler {
  Control<Traits>& control;
  RingPosition<kTileRing> position;

  template <class Storage>
  CUTE_DEVICE DynamicScheduler(Storage& smem, FwdSm90Params const&) : control(smem.control) {}

  CUTE_DEVICE unsigned publish(unsigned tile) {
    wait(&control.empty_tile[position.stage], position.parity ^ 1);
    control.tile[position.stage] = int(tile);
    arrive(&control.full_tile[position.stage]);
    position.advance();
    return tile;
  }

  CUTE_DEVICE unsigned produce_first(FwdSm90Params const&) { return publish(cta_index()); }

  CUTE_DEVICE unsigned produce_next(FwdSm90Params const& params) {
    return publish(num_ctas() + atomicAdd(&params.tile_counter->next_tile, 1u));
  }

  CUTE_DEVICE unsigned consume_first(FwdSm90Params const& params) { return consume_next(params); }

  CUTE_DEVICE unsigned consume_next(FwdSm90Params const&) {
    wait(&control.full_tile[position.stage], position.parity);
    unsigned const tile = warp_uniform(control.tile[position.stage]);
    if (threadIdx.x % 32 == 0) { arrive(&control.empty_tile[position.stage]); }
    position.advance();
    return tile;
  }

  // By the producer, after its last fetch. Every CTA has made its last fetch when the last one gets here.
  CUTE_DEVICE void finish(FwdSm90Params const& params) {
    __threadfence();
    if (atomicAdd(&params.tile_counter->num_finished_ctas, 1u) == num_ctas() - 1) {
      atomicExch(&params.tile_counter->next_tile, 0u);
      atomicExch(&params.tile_counter->num_finished_ctas, 0u);
    }
  }
};

}  // namespace attnsmith::sm90
