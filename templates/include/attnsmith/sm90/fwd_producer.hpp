// SPDX-License-Identifier: Apache-2.0
// SM90 forward, producer warpgroup: one thread that keeps Q's buffers and the rings of K and V filled by TMA, and for FP8
// three warps that bring V into the form that wgmma takes. Not responsible for which tiles: the scheduler is.
#pragma once

#include "attnsmith/sm90/scheduler.hpp"
#include "attnsmith/sm90/storage.hpp"
#include "attnsmith/sm90/tma.hpp"
#include "attnsmith/sm90/v_transpose.hpp"

namespace attnsmith::sm90 {

template <class Traits, class Storage>
struct FwdProducer {
  using Tiles = sm90::Tiles<Traits>;
  static constexpr int kNumStages = Traits::kNumStages;
  static constexpr int kElementBytes = Tiles::kElementBytes;

  Storage& smem;
  FwdSm90Params const& params;
  RingPosition<kNumStages> k_position;
  RingPosition<kNumStages> v_position;
  uint32_t q_parity = 0;

  CUTE_DEVICE FwdProducer(Storage& smem_, FwdSm90Params const& params_) : smem(smem_), params(params_) {}

  CUTE_DEVICE void load_q(TileCoord const& tile, int warpgroup) {
    using Q = typename Tiles::Q;
    Barrier* const full = &smem.control.full_q[warpgroup];
    wait(&smem.control.empty_q[warpgroup], q_parity ^ 1);
    uint32_t const slab = smem_address(smem.q_or_o) + warpgroup * Tiles::kSlabBytes;
    int const query = QueryRows<Traits>::first_query(params.fwd, tile.m_block, warpgroup);
    int rows = kRowsPerWarpgroup;
    if constexpr (Traits::kPacksGqa) {
      rows = QueryRows<Traits>::queries_per_warpgroup(params.fwd) * params.fwd.nheads_q_per_k;
    }
    arrive_expect_bytes(full, rows * Traits::kHeadDim * kElementBytes);
    CUTE_UNROLL
    for (int box = 0; box < Traits::kHeadDim * kElementBytes / Q::kRowBytes; ++box) {
      uint32_t const to = slab + box * kRowsPerWarpgroup * Q::kRowBytes;
      int const col = box * (Q::kRowBytes / kElementBytes);
      if constexpr (Traits::kPacksGqa) {
        tma_load(params.tma_q, full, CachePolicy::kStream, to, col, 0, query, tile.head_kv, tile.batch);
      } else {
        tma_load(params.tma_q, full, CachePolicy::kStream, to, col, query, tile.head, tile.batch);
      }
    }
  }

  // A tile of K or V: kTileRowBytes of each of its kBlockN rows, box by box. In a cluster each CTA loads its share of
  // every box for all CTAs.
  template <int kTileRowBytes>
  CUTE_DEVICE void load_rows(TmaDescriptor const& map, Barrier* full, uint32_t to, int row, int head, int batch) {
    constexpr int kRowBytes = box_row_bytes(kTileRowBytes);
    constexpr int kShare = Traits::kBlockN / Traits::kClusterSize;
    arrive_expect_bytes(full, Traits::kBlockN * kTileRowBytes);
    int const first = Traits::kClusterSize == 1 ? 0 : cta_index() % Traits::kClusterSize * kShare;
    CUTE_UNROLL
    for (int box = 0; box < kTileRowBytes / kRowBytes; ++box) {
      uint32_t const box_to = to + (box * Traits::kBlockN + first) * kRowBytes;
      int const col = box * (kRowBytes / kElementBytes);
      if constexpr (Traits::kClusterSize == 1) {
        tma_load(map, full, CachePolicy::kKeep, box_to, col, row, head, batch);
      } else {
        tma_load_multicast(map, full, CachePolicy::kKeep, (1 << Traits::kClusterSize) - 1, box_to, col, row + first,
                           head, batch);
      }
    }
  }

  CUTE_DEVICE void load_k(TileCoord const& tile, int n_block) {
    int const stage = k_position.stage;
    wait(&smem.control.empty_k[stage], k_position.parity ^ 1);
    load_rows<Traits::kHeadDim * kElementBytes>(params.tma_k, &smem.control.full_k[stage],
                                                smem_address(smem.k) + stage * Tiles::K::kBytes,
                                                n_block * Traits::kBlockN, tile.head_kv, tile.batch);
    k_position.advance();
  }

  CUTE_DEVICE void load_v(TileCoord const& tile, int n_block) {
    int const stage = v_position.stage;
    wait(&smem.control.empty_v[stage], v_position.parity ^ 1);
    if constexpr (Traits::kVIsColMajor) {
      load_columns(&smem.control.full_v[stage], smem_address(smem.v) + stage * Tiles::V::kBytes,
                   n_block * Traits::kBlockN, tile.head_kv, tile.batch);
      v_position.advance();
      return;
    }
    load_rows<Traits::kHeadDimV * kElementBytes>(params.tma_v, &smem.control.full_v[stage],
                                                 smem_address(smem.v) + stage * Tiles::V::kBytes,
                                                 n_block * Traits::kBlockN, tile.head_kv, tile.batch);
    v_position.advance();
  }

  // A tile of a column-major V: 128 keys of each of its kHeadDimV columns at a time.
  CUTE_DEVICE void load_columns(Barrier* full, uint32_t to, int key, int head, int batch) {
    arrive_expect_bytes(full, Traits::kBlockN * Traits::kHeadDimV);
    CUTE_UNROLL
    for (int box = 0; box < Traits::kBlockN / 128; ++box) {
      tma_load(params.tma_v, full, CachePolicy::kKeep, to + box * Traits::kHeadDimV * 128, key + box * 128, 0, head,
               batch);
    }
  }

  // K runs one block ahead of V: that is the order in which consumers need them. A warpgroup's Q can come only once its
  // O of the tile before is stored; the first warpgroup to get there finds the blocks that it begins with, because they
  // are asked for before the others' Q. (With one buffer, which all warpgroups must leave in turn, that would deadlock.)
  CUTE_DEVICE void load_tile(TileCoord const& tile) {
    constexpr int kEarlyQ = kNumStages > 1 ? 1 : Traits::kNumWarpgroups;
    int n_block = tile_range<Traits>(params.fwd, tile.m_block).n_block_max - 1;
    if (n_block >= 0) { load_k(tile, n_block); }
    load_q(tile, 0, kEarlyQ);
    load_kv(tile, n_block);
    load_q(tile, kEarlyQ, Traits::kNumWarpgroups);
    q_parity ^= 1;
    CUTE_NO_UNROLL
    for (--n_block; n_block >= 0; --n_block) { load_kv(tile, n_block); }
  }

  CUTE_DEVICE void load_q(TileCoord const& tile, int first_warpgroup, int end_warpgroup) {
    CUTE_UNROLL
    for (int warpgroup = first_warpgroup; warpgroup < end_warpgroup; ++warpgroup) { load_q(tile, warpgroup); }
  }

  // V of a block, and before it K of the next.
  CUTE_DEVICE void load_kv(TileCoord const& tile, int n_block) {
    if (n_block > 0) { load_k(tile, n_block - 1); }
    if (n_block >= 0) { load_v(tile, n_block); }
  }

  // Before the CTA's shared memory goes away: consumers of another CTA may still be about to arrive here.
  CUTE_DEVICE void drain() {
    if constexpr (Traits::kClusterSize > 1) {
      CUTE_NO_UNROLL
      for (int i = 0; i < kNumStages; ++i) {
        wait(&smem.control.empty_k[k_position.stage], k_position.parity ^ 1);
        wait(&smem.control.empty_v[v_position.stage], v_position.parity ^ 1);
        k_position.advance();
        v_position.advance();
      }
    }
  }
};

// FP8: one of the warps that prepare V's blocks for wgmma, in the order in which they are loaded.
template <class Traits, class Storage>
struct VPreparer {
  using Tiles = sm90::Tiles<Traits>;

  Storage& smem;
  FwdSm90Params const& params;
  int warp;  // 0 .. kNumVWarps - 1
  RingPosition<Traits::kNumStages> position;

  CUTE_DEVICE VPreparer(Storage& smem_, FwdSm90Params const& params_, int warp_)
      : smem(smem_), params(params_), warp(warp_) {}

  CUTE_DEVICE void prepare_tile(TileCoord const& tile) {
    bool const is_first_lane = threadIdx.x % 32 == 0;
    int n_block = tile_range<Traits>(params.fwd, tile.m_block).n_block_max - 1;
    CUTE_NO_UNROLL
    for (; n_block >= 0; --n_block) {
      int const stage = position.stage;
      uint32_t const v = smem_address(smem.v) + stage * Tiles::V::kBytes;
      wait(&smem.control.full_v[stage], position.parity);
      if constexpr (kTransposesV<Traits>) {
        wait(&smem.control.empty_vt[stage], position.parity ^ 1);
        transpose_v<Traits>(v, smem_address(smem.vt) + stage * Tiles::Vt::kBytes, warp, kNumVWarps);
      } else {
        permute_keys<Traits>(v, warp * 32 + threadIdx.x % 32, kNumVWarps * 32);
      }
      fence_async_proxy();
      __syncwarp();
      if (is_first_lane) {
        arrive(&smem.control.full_vt[stage]);
        if constexpr (kTransposesV<Traits>) { arrive(&smem.control.empty_v[stage]); }
      }
      position.advance();
    }
  }
};

}  // namespace attnsmith::sm90
