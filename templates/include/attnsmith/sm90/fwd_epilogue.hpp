// SPDX-License-Identifier: Apache-2.0
// SM90 forward, epilogue of one consumer warpgroup: normalize O, stage it where the warpgroup's Q was, store it by TMA,
// write the LSE from registers. Not responsible for the loop before it.
#pragma once

#include "attnsmith/sm90/fwd_consumer.hpp"
#include "attnsmith/sm90/repair.hpp"
#include "attnsmith/sm90/tma.hpp"
#include "attnsmith/sm90/v_transpose.hpp"

namespace attnsmith::sm90 {

template <class Traits, class Storage>
struct FwdEpilogue {
  using Consumer = FwdConsumer<Traits, Storage>;
  using Softmax = typename Consumer::Softmax;
  using AccO = typename Consumer::AccO;
  using Tiles = sm90::Tiles<Traits>;
  using O = typename Tiles::O;
  using ElementO = typename Traits::ElementO;

  // Byte offset of row `row`, 16-byte chunk `chunk` in the staged tile.
  CUTE_DEVICE static uint32_t chunk_offset(int row, int chunk) {
    constexpr int kChunks = O::kRowBytes / 16;
    return chunk / kChunks * kRowsPerWarpgroup * O::kRowBytes +
           swizzled<O::kRowBytes>(row * O::kRowBytes + chunk % kChunks * 16);
  }

  CUTE_DEVICE static void normalize(Consumer const& consumer, TileCoord const& tile, Softmax const& softmax,
                                    AccO& acc_o) {
    FwdParams const& params = consumer.params.fwd;
    auto rowcol = rows_and_columns(acc_o);
    CUTE_UNROLL
    for (int mi = 0; mi < Softmax::kNumRows; ++mi) {
      int query = accumulator_row(consumer.thread, mi);
      int head = tile.head;
      bool is_used = true;
      if constexpr (Traits::kPacksGqa) {
        int const group = params.nheads_q_per_k;
        head += query % group;
        query /= group;
        is_used = query < kRowsPerWarpgroup / group;
      }
      query += consumer.first_query;
      float lse;
      float factor = softmax.finish(mi, consumer.scale_log2, consumer.exact_reference(), lse);
      if constexpr (Traits::kIsFp8) { factor *= consumer.v_descale; }
      CUTE_UNROLL
      for (int ni = 0; ni < cute::size<1>(rowcol); ++ni) { rowcol(mi, ni) *= factor; }
      if (Traits::Mask::col_limit(query, Seqlen{params.seqlen_q, params.seqlen_k}) <= 0) {
        // Sees no key, whatever scales and hidden values are.
        lse = negative_infinity();
        CUTE_UNROLL
        for (int ni = 0; ni < cute::size<1>(rowcol); ++ni) { rowcol(mi, ni) = 0.f; }
      }
      if (is_used && consumer.thread % 4 == 0 && query < params.seqlen_q) {
        params.lse_ptr[(int64_t(tile.batch) * params.nheads_q + head) * params.seqlen_q + query] = lse;
      }
    }
  }

  CUTE_DEVICE static void stage(Consumer const& consumer, AccO const& acc_o) {
    int const lane = consumer.thread % 32;
    int const row = consumer.thread / 32 * 16 + lane % 16;
    CUTE_UNROLL
    for (int g = 0; g < Traits::kHeadDimV / 8; g += 2) {
      uint32_t words[4];
      CUTE_UNROLL
      for (int i = 0; i < 4; ++i) {
        float const* const pair = &acc_o(2 * (i % 2), 0, g + i / 2);
        words[i] = pack<ElementO>(pair[0], pair[1]);
      }
      stmatrix_x4(consumer.slab() + chunk_offset(row, g + lane / 16), words);
    }
  }

  CUTE_DEVICE static void store(Consumer const& consumer, TileCoord const& tile) {
    FwdSm90Params const& params = consumer.params;
    CUTE_UNROLL
    for (int box = 0; box < Traits::kHeadDimV * 2 / O::kRowBytes; ++box) {
      uint32_t const from = consumer.slab() + box * kRowsPerWarpgroup * O::kRowBytes;
      int const col = box * (O::kRowBytes / 2);
      if constexpr (Traits::kPacksGqa) {
        tma_store(params.tma_o, from, col, 0, consumer.first_query, tile.head_kv, tile.batch);
      } else {
        tma_store(params.tma_o, from, col, consumer.first_query, tile.head, tile.batch);
      }
    }
    tma_store_commit();
  }

  // Of the warp's 16 staged rows, those whose values a hidden key spoiled.
  CUTE_DEVICE static void repair(Consumer const& consumer, TileCoord const& tile) {
    using Element = typename Traits::Element;
    FwdParams const& params = consumer.params.fwd;
    Seqlen const seqlen{params.seqlen_q, params.seqlen_k};
    int const lane = consumer.thread % 32;
    int const num_visited =
        cute::min(seqlen.k, tile_range<Traits>(params, tile.m_block).n_block_max * Traits::kBlockN);
    CUTE_NO_UNROLL
    for (int i = 0; i < 16; ++i) {
      int const row = consumer.thread / 32 * 16 + i;
      int query = row, head = tile.head;
      if constexpr (Traits::kPacksGqa) {
        query = row / params.nheads_q_per_k;
        head += row % params.nheads_q_per_k;
      }
      query += consumer.first_query;
      if (query >= seqlen.q || head >= params.nheads_q) { continue; }
      RowRepair<Traits> const repair{
          params,
          static_cast<Element const*>(params.q_ptr) + tile.batch * params.q_strides.batch +
              query * params.q_strides.row + head * params.q_strides.head,
          static_cast<Element const*>(params.k_ptr) + tile.batch * params.k_strides.batch +
              tile.head_kv * params.k_strides.head,
          static_cast<Element const*>(params.v_ptr) + tile.batch * params.v_strides.batch +
              tile.head_kv * params.v_strides.head,
          Traits::Mask::col_limit(query, seqlen), num_visited, consumer.scale_log2 * consumer.q_sign};
      uint32_t spoiled = 0;
      CUTE_NO_UNROLL
      for (int c = 0; c < RowRepair<Traits>::kNumColumns; ++c) {
        int const col = lane + 32 * c;
        if (col < params.head_dim_v && is_nonfinite<ElementO>(*staged(consumer, row, col)) && repair.is_spoiled(col)) {
          spoiled |= 1u << c;
        }
      }
      if (!__any_sync(0xffffffffu, spoiled != 0)) { continue; }
      float values[RowRepair<Traits>::kNumColumns];
      repair.recompute(values);
      CUTE_UNROLL
      for (int c = 0; c < RowRepair<Traits>::kNumColumns; ++c) {
        float const value = Traits::kIsFp8 ? values[c] * consumer.v_descale : values[c];
        if (spoiled >> c & 1) { *staged(consumer, row, lane + 32 * c) = uint16_t(pack<ElementO>(value, value)); }
      }
    }
  }

  CUTE_DEVICE static uint16_t* staged(Consumer const& consumer, int row, int col) {
    return reinterpret_cast<uint16_t*>(consumer.smem.q_or_o + consumer.warpgroup * Tiles::kSlabBytes +
                                       chunk_offset(row, col / 8)) +
           col % 8;
  }

  // Ends the tile: afterwards the producer may load the warpgroup's next Q.
  CUTE_DEVICE static void run(Consumer& consumer, TileCoord const& tile, Softmax const& softmax, AccO& acc_o) {
    normalize(consumer, tile, softmax, acc_o);
    stage(consumer, acc_o);
    if constexpr (Traits::Mask::kHidesKeys) {
      if (__any_sync(0xffffffffu, has_nonfinite(acc_o))) {
        __syncwarp();
        repair(consumer, tile);
      }
    }
    consumer.publish_to_async_proxy();
    if (consumer.thread == 0) {
      store(consumer, tile);
      tma_store_wait_read();
      arrive(&consumer.smem.control.empty_q[consumer.warpgroup]);
    }
    consumer.q_parity ^= 1;
  }
};

}  // namespace attnsmith::sm90
