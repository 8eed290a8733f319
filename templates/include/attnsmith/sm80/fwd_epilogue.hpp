// SPDX-License-Identifier: Apache-2.0
// SM80 forward epilogue: normalize O, write O through shared memory with 16-byte stores, write the LSE. Not responsible
// for the loop before it.
#pragma once

#include <cute/tensor.hpp>

#include "attnsmith/nonfinite.hpp"
#include "attnsmith/sm80/fwd_mainloop.hpp"

namespace attnsmith::sm80 {

template <class Traits>
struct FwdEpilogue {
  using Mainloop = FwdMainloop<Traits>;
  using Element = typename Traits::Element;
  using TiledMma = typename Mainloop::TiledMma;
  using SmemO = typename Mainloop::SmemO;

  // Gives each element of O back the infinities and NaN of V that its row sees (nonfinite.hpp). Runs before O is
  // normalized: none of them changes by that. K's buffers hold the table, all copies having been waited for.
  CUTE_DEVICE static void restore_nonfinite(typename Mainloop::SharedStorage& smem, FwdParams const& params,
                                            TileCoord const& tile, Seqlen seqlen, typename Mainloop::AccO& acc_o,
                                            int thread) {
    using namespace cute;
    static_assert(Traits::kHeadDimV * sizeof(FirstNonfinite) <= sizeof(smem.k), "the table fits K's buffers");
    auto* columns = reinterpret_cast<FirstNonfinite*>(smem.k);
    auto const* v = static_cast<Element const*>(params.v_ptr) + tile.batch * params.v_strides.batch +
                    tile.head_kv * params.v_strides.head;
    __syncthreads();
    find_nonfinite<Element, Mainloop::kNumThreads>(columns, v, params.v_strides.row, params.head_dim_v, seqlen.k,
                                                   thread);
    __syncthreads();
    Tensor acc_o_rowcol = make_tensor(acc_o.data(), accumulator_rowcol(acc_o.layout()));
    Tensor tOcO = TiledMma{}.get_slice(thread).partition_C(
        make_identity_tensor(Shape<Int<Traits::kBlockM>, Int<Traits::kHeadDimV>>{}));
    Tensor tOcO_rowcol = make_tensor(tOcO.data(), accumulator_rowcol(tOcO.layout()));
    CUTE_UNROLL
    for (int mi = 0; mi < size<0>(acc_o_rowcol); ++mi) {
      int const row = tile.m_block * Traits::kBlockM + get<0>(tOcO_rowcol(mi, 0));
      int const limit = Traits::Mask::col_limit(row, seqlen);
      CUTE_UNROLL
      for (int ni = 0; ni < size<1>(acc_o_rowcol); ++ni) {
        int const col = get<1>(tOcO_rowcol(mi, ni));
        if (col < params.head_dim_v) {
          acc_o_rowcol(mi, ni) = with_nonfinite(acc_o_rowcol(mi, ni), columns[col], limit);
        }
      }
    }
  }

  // Also right when the loop never ran: every row is then empty, O is 0 and the LSE -inf.
  CUTE_DEVICE static void run(typename Mainloop::SharedStorage& smem, FwdParams const& params, TileCoord const& tile,
                              Seqlen seqlen, typename Mainloop::Softmax& softmax, typename Mainloop::AccO& acc_o,
                              int thread) {
    using namespace cute;
    Tensor acc_o_rowcol = make_tensor(acc_o.data(), accumulator_rowcol(acc_o.layout()));
    Tensor cO = make_identity_tensor(Shape<Int<Traits::kBlockM>, Int<Traits::kHeadDimV>>{});
    auto thr_mma = TiledMma{}.get_slice(thread);
    Tensor tOcO = thr_mma.partition_C(cO);
    Tensor tOcO_rowcol = make_tensor(tOcO.data(), accumulator_rowcol(tOcO.layout()));
    Tensor sO = make_tensor(make_smem_ptr(smem.q_or_o), typename SmemO::Layout{});

    __syncthreads();  // all warps have read Q for the last time
    float* lse_row0 = params.lse_ptr + (int64_t(tile.batch) * params.nheads_q + tile.head) * seqlen.q;
    CUTE_UNROLL
    for (int mi = 0; mi < size<0>(acc_o_rowcol); ++mi) {
      float lse;
      float const scale = softmax.finish(mi, lse);
      int const tile_row = get<0>(tOcO_rowcol(mi, 0));
      int const row = tile.m_block * Traits::kBlockM + tile_row;
      if (thread % 4 == 0 && row < seqlen.q) { lse_row0[row] = lse; }
      CUTE_UNROLL
      for (int ni = 0; ni < size<1>(acc_o_rowcol); ni += 2) {
        *reinterpret_cast<uint32_t*>(&sO(tile_row, get<1>(tOcO_rowcol(mi, ni)))) =
            pack<Element>(acc_o_rowcol(mi, ni) * scale, acc_o_rowcol(mi, ni + 1) * scale);
      }
    }
    __syncthreads();
    Element* o_base = static_cast<Element*>(params.o_ptr) + tile.batch * params.o_strides.batch +
                      tile.head * params.o_strides.head;
    store_tile<Element, Traits::kBlockM, Traits::kHeadDimV, Mainloop::kNumThreads, Traits::kPadsHeadDim>(
        smem.q_or_o, o_base, params.o_strides.row, params.head_dim_v, tile.m_block, seqlen.q, thread);
  }
};

}  // namespace attnsmith::sm80
