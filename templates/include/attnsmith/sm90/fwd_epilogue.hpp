// SPDX-License-Identifier: Apache-2.0
// SM90 forward, epilogue of one consumer warpgroup: normalize O, stage it where the warpgroup's Q was, store it by TMA,
// write the LSE from registers. Not responsible for the loop before it.
#pragma once

#include "attnsmith/sm90/fwd_consumer.hpp"
#include "attnsmith/sm90/tma.hpp"

namespace attnsmith::sm90 {

// Four 8x8 matrices of 16-bit elements; lane l gives the address of row l % 8 of matrix l / 8.
CUTE_DEVICE void stmatrix_x4(uint32_t address, uint32_t const (&words)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(words[0]),
               "r"(words[1]), "r"(words[2]), "r"(words[3])
               : "memory");
}

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
      float lse;
      float const factor = softmax.finish(mi, consumer.scale_log2, consumer.exact_reference(), lse);
      CUTE_UNROLL
      for (int ni = 0; ni < cute::size<1>(rowcol); ++ni) { rowcol(mi, ni) *= factor; }
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

  // Ends the tile: afterwards the producer may load the warpgroup's next Q.
  CUTE_DEVICE static void run(Consumer& consumer, TileCoord const& tile, Softmax const& softmax, AccO& acc_o) {
    normalize(consumer, tile, softmax, acc_o);
    stage(consumer, acc_o);
    fence_async_proxy();
    named_barrier_sync(kWarpgroupBarrier + consumer.warpgroup, kWarpgroupThreads);
    if (consumer.thread == 0) {
      store(consumer, tile);
      tma_store_wait_read();
      arrive(&consumer.smem.control.empty_q[consumer.warpgroup]);
    }
    consumer.q_parity ^= 1;
  }
};

}  // namespace attnsmith::sm90
