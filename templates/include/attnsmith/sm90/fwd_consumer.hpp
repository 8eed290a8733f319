// SPDX-License-Identifier: Apache-2.0
// SM90 forward, consumer warpgroup: 64 query rows, wgmma and online softmax over the key blocks of a tile, from the last
// to the first. Not responsible for loading (fwd_producer.hpp) or for storing O (fwd_epilogue.hpp).
//
// One key block, overlapping (kOverlapsSoftmax). S_j = Q K_j, P_j its weights; the tensor cores work on the second line
// while the ALUs work on the first:
//
//   ALU      ..softmax_j-1 | issue            | softmax_j ............ | rescale O, P_j |
//   tensor                 | S_j = Q K_j | O += P_j-1 V_j-1            |
//   waits     full_k[j], turn, full_v[j-1]    ^ S_j                    ^ O
//   arrivals                       next turn  ^ empty_k[j]             ^ empty_v[j-1]
//
// Barriers: full_q, full_k, full_v: TMA's bytes arrive, consumers wait. empty_k, empty_v: one thread of each warpgroup
// arrives once its wgmmas have read the buffer, the producer waits. Ping-pong: named barrier kTurnBarrier + w holds
// warpgroup w's turn at the tensor cores; its 128 threads wait there and the 128 of the warpgroup before arrive there.
#pragma once

#include <cute/tensor.hpp>

#include "attnsmith/convert.hpp"
#include "attnsmith/layout.hpp"
#include "attnsmith/mask.hpp"
#include "attnsmith/nonfinite.hpp"
#include "attnsmith/sm90/barriers.hpp"
#include "attnsmith/sm90/scheduler.hpp"
#include "attnsmith/sm90/softmax.hpp"
#include "attnsmith/sm90/storage.hpp"
#include "attnsmith/sm90/v_transpose.hpp"
#include "attnsmith/sm90/wgmma.hpp"

namespace attnsmith::sm90 {

constexpr int kWarpgroupBarrier = 1;  // + warpgroup: its 128 threads among themselves
constexpr int kTurnBarrier = 5;       // + warpgroup

// fp32 accumulators of m64nN: ((2,2),1,N/8) as of m16n8 atoms of a warp's 16 rows.
template <int kN>
using Accumulators = decltype(cute::make_tensor<float>(
    cute::Shape<cute::Shape<cute::_2, cute::_2>, cute::_1, cute::Int<kN / 8>>{}));

template <class Acc>
CUTE_DEVICE auto rows_and_columns(Acc& acc) {
  return cute::make_tensor(acc.data(), accumulator_rowcol(acc.layout()));
}

// Row of a thread's mi-th accumulator row within its warpgroup's 64.
CUTE_DEVICE int accumulator_row(int thread, int mi) { return thread / 32 * 16 + thread % 32 / 4 + 8 * mi; }

template <class Traits, class Storage>
struct FwdConsumer {
  using Element = typename Traits::Element;
  using Tiles = sm90::Tiles<Traits>;
  using Softmax = sm90::Softmax<Traits>;
  using AccS = Accumulators<Traits::kBlockN>;
  using AccO = Accumulators<Traits::kHeadDimV>;
  static constexpr int kBlockN = Traits::kBlockN;
  static constexpr int kNumStages = Traits::kNumStages;
  static constexpr int kDepth = 32 / sizeof(Element);  // of one wgmma
  static constexpr int kNumKSteps = kBlockN / kDepth;

  // P of one key block: A fragments of kNumKSteps wgmmas, or nothing where P goes through shared memory.
  struct Weights {
    uint32_t a[Traits::kPInSmem ? 1 : kNumKSteps][4];
  };

  Storage& smem;
  FwdSm90Params const& params;
  int warpgroup;
  int thread;  // in the warpgroup
  RingPosition<kNumStages> k_position;
  RingPosition<kNumStages> v_position;  // of the product at hand
  uint32_t q_parity = 0;
  // Of the current tile.
  float scale_log2;  // > 0: its sign is folded into Q
  int q_sign;
  float v_descale;  // FP8 only
  int first_query;

  CUTE_DEVICE FwdConsumer(Storage& smem_, FwdSm90Params const& params_, int warpgroup_)
      : smem(smem_), params(params_), warpgroup(warpgroup_), thread(threadIdx.x % kWarpgroupThreads) {
    if constexpr (Traits::kIsPingPong) {
      // The last warpgroup has had its turn: the first one begins.
      if (warpgroup == Traits::kNumWarpgroups - 1) { end_turn(); }
    }
  }

  CUTE_DEVICE void begin_turn() const {
    if constexpr (Traits::kIsPingPong) { named_barrier_sync(kTurnBarrier + warpgroup, 2 * kWarpgroupThreads); }
  }

  CUTE_DEVICE void end_turn() const {
    if constexpr (Traits::kIsPingPong) {
      int const next = warpgroup + 1 == Traits::kNumWarpgroups ? 0 : warpgroup + 1;
      named_barrier_arrive(kTurnBarrier + next, 2 * kWarpgroupThreads);
    }
  }

  CUTE_DEVICE void release(Barrier* empty) const {
    if constexpr (Traits::kClusterSize == 1) {
      if (thread == 0) { arrive(empty); }
    } else {
      if (thread < Traits::kClusterSize) { arrive_remote(empty, thread); }
    }
  }

  CUTE_DEVICE uint32_t slab() const { return smem_address(smem.q_or_o) + warpgroup * Tiles::kSlabBytes; }

  CUTE_DEVICE float* exact_reference() const {
    return smem.control.exact_reference + warpgroup * kRowsPerWarpgroup + thread / 32 * 16;
  }

  // Waits for the tile's Q. The softmax assumes a positive scale: a negative one flips Q's sign, zero makes Q zero.
  CUTE_DEVICE void begin_tile(TileCoord const& tile) {
    first_query = QueryRows<Traits>::first_query(params.fwd, tile.m_block, warpgroup);
    scale_log2 = params.fwd.scale_log2;
    q_sign = params.fwd.q_sign;
    if constexpr (Traits::kIsFp8) { apply_descales(tile); }
    wait(&smem.control.full_q[warpgroup], q_parity);
    if constexpr (Traits::kPacksGqa) { zero_unused_rows(); }
    if (q_sign <= 0) { fold_sign_into_q(q_sign); }
  }

  // Packed: TMA fills whole groups only. What the remaining rows hold would take part in a warp's votes.
  CUTE_DEVICE void zero_unused_rows() const {
    using Q = typename Tiles::Q;
    int const used = QueryRows<Traits>::queries_per_warpgroup(params.fwd) * params.fwd.nheads_q_per_k;
    if (used == kRowsPerWarpgroup) { return; }
    CUTE_NO_UNROLL
    for (int i = thread; i < Q::kBytes / 4; i += kWarpgroupThreads) {
      if (i * 4 / Q::kRowBytes % kRowsPerWarpgroup >= used) { q_words()[i] = 0; }
    }
    publish_to_async_proxy();
  }

  CUTE_DEVICE uint32_t* q_words() const {
    return reinterpret_cast<uint32_t*>(smem.q_or_o + warpgroup * Tiles::kSlabBytes);
  }

  // What the warpgroup's threads wrote to shared memory becomes visible to its wgmmas.
  CUTE_DEVICE void publish_to_async_proxy() const {
    fence_async_proxy();
    named_barrier_sync(kWarpgroupBarrier + warpgroup, kWarpgroupThreads);
  }

  CUTE_DEVICE void apply_descales(TileCoord const& tile) {
    float const scale = scale_log2 * value(params.q_descale, tile) * value(params.k_descale, tile);
    v_descale = value(params.v_descale, tile);
    q_sign = scale == 0.f ? 0 : scale < 0.f ? -q_sign : q_sign;
    scale_log2 = scale == 0.f ? 1.f : fabsf(scale);  // NaN stays: all scores become NaN
  }

  CUTE_DEVICE static float value(Descale const& descale, TileCoord const& tile) {
    return descale.ptr == nullptr
               ? 1.f
               : descale.ptr[tile.batch * descale.batch_stride + tile.head_kv * descale.head_stride];
  }

  CUTE_DEVICE void fold_sign_into_q(int sign) const {
    constexpr uint32_t kSigns = Traits::kIsFp8 ? 0x80808080u : 0x80008000u;
    CUTE_NO_UNROLL
    for (int i = thread; i < Tiles::Q::kBytes / 4; i += kWarpgroupThreads) {
      q_words()[i] = sign < 0 ? q_words()[i] ^ kSigns : times_zero<Element>(q_words()[i]);
    }
    publish_to_async_proxy();
  }

  // Starts S = Q K^T of the next K buffer.
  CUTE_DEVICE void start_qk(AccS& acc_s) const {
    using Q = typename Tiles::Q;
    using K = typename Tiles::K;
    uint32_t const q = slab();
    uint32_t const k = smem_address(smem.k) + k_position.stage * K::kBytes;
    pin_registers(acc_s);
    wgmma_fence();
    CUTE_UNROLL
    for (int i = 0; i < Traits::kHeadDim / kDepth; ++i) {
      Traits::WgmmaQk::template mma<Q, K>(acc_s.data(), Q::descriptor(q, i), K::descriptor(k, i), i > 0);
    }
    wgmma_commit();
  }

  // Starts O += P V of the next V buffer.
  CUTE_DEVICE void start_pv(Weights const& weights, AccO& acc_o) const {
    using V = cute::conditional_t<Traits::kIsFp8, typename Tiles::Vt, typename Tiles::V>;
    uint32_t const v = v_buffer() + v_position.stage * V::kBytes;
    pin_registers(acc_o);
    wgmma_fence();
    CUTE_UNROLL
    for (int i = 0; i < kNumKSteps; ++i) {
      if constexpr (Traits::kPInSmem) {
        using P = typename Tiles::P;
        Traits::WgmmaPv::template mma<P, V>(acc_o.data(), P::descriptor(p_buffer(), i), V::descriptor(v, i), true);
      } else {
        Traits::WgmmaPv::template mma<V>(acc_o.data(), weights.a[i], V::descriptor(v, i), true);
      }
    }
    wgmma_commit();
  }

  CUTE_DEVICE uint32_t v_buffer() const {
    if constexpr (kTransposesV<Traits>) {
      return smem_address(smem.vt);
    } else {
      return smem_address(smem.v);
    }
  }

  CUTE_DEVICE uint32_t p_buffer() const {
    if constexpr (Traits::kPInSmem) {
      return smem_address(smem.p) + warpgroup * Tiles::P::kBytes;
    } else {
      return 0;
    }
  }

  CUTE_DEVICE void mask(AccS& acc_s, int n_block) const {
    auto scores = rows_and_columns(acc_s);
    Seqlen const seqlen{params.fwd.seqlen_q, params.fwd.seqlen_k};
    CUTE_UNROLL
    for (int mi = 0; mi < Softmax::kNumRows; ++mi) {
      int row = accumulator_row(thread, mi);
      if constexpr (Traits::kPacksGqa) { row /= params.fwd.nheads_q_per_k; }
      int const limit = Traits::Mask::col_limit(first_query + row, seqlen);
      mask_row(scores, mi, limit - n_block * kBlockN - thread % 4 * 2);
    }
  }

  // Weights (fp32, in acc_s) -> A operand of P V. 16 bits: the accumulators of two neighbouring n8 tiles are exactly the
  // A fragment of a k16 wgmma (row halves, then column halves), so P never crosses threads. FP8: a thread's accumulators
  // of two n8 tiles are 4 neighbouring bytes of the A fragment once V's keys are permuted alike (v_transpose.hpp).
  CUTE_DEVICE void convert(AccS const& acc_s, Weights& weights) const {
    if constexpr (Traits::kPInSmem) {
      convert_to_smem(acc_s);
    } else {
      CUTE_UNROLL
      for (int k = 0; k < kNumKSteps; ++k) {
        CUTE_UNROLL
        for (int i = 0; i < 4; ++i) { weights.a[k][i] = a_register(acc_s, k, i); }
      }
    }
  }

  CUTE_DEVICE static uint32_t a_register(AccS const& acc_s, int k, int i) {
    if constexpr (Traits::kIsFp8) {
      float const* const first = &acc_s(2 * (i % 2), 0, 4 * k + i / 2 * 2);
      float const* const second = &acc_s(2 * (i % 2), 0, 4 * k + i / 2 * 2 + 1);
      return pack_e4m3(first[0], first[1], second[0], second[1]);
    } else {
      float const* const pair = &acc_s(2 * (i % 2), 0, 2 * k + i / 2);
      return pack<Element>(pair[0], pair[1]);
    }
  }

  // To the warp's own 16 rows of P, which wgmmas that this warp has waited for have read.
  CUTE_DEVICE void convert_to_smem(AccS const& acc_s) const {
    int const lane = thread % 32;
    int const row = thread / 32 * 16 + lane % 16;
    CUTE_UNROLL
    for (int k = 0; k < kNumKSteps; ++k) {
      uint32_t const words[4] = {a_register(acc_s, k, 0), a_register(acc_s, k, 1), a_register(acc_s, k, 2),
                                 a_register(acc_s, k, 3)};
      int const chunk = 2 * k + lane / 16;
      stmatrix_x4(p_buffer() + chunk / 8 * kRowsPerWarpgroup * 128 + swizzled<128>(row * 128 + chunk % 8 * 16), words);
    }
    publish_to_async_proxy();
  }

  CUTE_DEVICE void rescale(AccO& acc_o, float const (&correction)[Softmax::kNumRows]) const {
    auto rowcol = rows_and_columns(acc_o);
    CUTE_UNROLL
    for (int mi = 0; mi < Softmax::kNumRows; ++mi) {
      CUTE_UNROLL
      for (int ni = 0; ni < cute::size<1>(rowcol); ++ni) { rowcol(mi, ni) *= correction[mi]; }
    }
  }

  // The tile's first key block: P of it, O = 0.
  CUTE_DEVICE void first_block(int n_block, Softmax& softmax, AccO& acc_o, Weights& weights) {
    AccS acc_s;
    wait(&smem.control.full_k[k_position.stage], k_position.parity);
    start_qk(acc_s);
    wgmma_wait<0>();
    pin_registers(acc_s);
    release_k();
    mask(acc_s, n_block);
    auto scores = rows_and_columns(acc_s);
    float correction[Softmax::kNumRows];
    softmax.update(scores, scale_log2, exact_reference(), correction);
    softmax.exponentiate(scores, scale_log2);
    convert(acc_s, weights);
    cute::clear(acc_o);
  }

  // Block n_block's scores under the product of the block before it, whose weights are given; leaves n_block's.
  template <bool kIsMasked>
  CUTE_DEVICE void overlapped_step(int n_block, Softmax& softmax, AccO& acc_o, Weights& weights) {
    AccS acc_s;
    wait(&smem.control.full_k[k_position.stage], k_position.parity);
    begin_turn();
    start_qk(acc_s);
    // V's rings have as many buffers as K's, and K is one block ahead. Derived instead of advanced: a second position
    // carried around the loop, the compiler does not keep in uniform registers, which costs 2 instructions per wgmma.
    v_position = k_position.previous();
    wait_v();
    start_pv(weights, acc_o);
    end_turn();
    wgmma_wait<1>();
    pin_registers(acc_s);
    release_k();
    if constexpr (kIsMasked) { mask(acc_s, n_block); }
    auto scores = rows_and_columns(acc_s);
    float correction[Softmax::kNumRows];
    bool const is_rescaled = softmax.update(scores, scale_log2, exact_reference(), correction);
    softmax.exponentiate(scores, scale_log2);
    wgmma_wait<0>();
    pin_registers(acc_o);
    release_v();
    if (is_rescaled) { rescale(acc_o, correction); }
    convert(acc_s, weights);
  }

  // Block n_block's scores, then its product, one after the other.
  template <bool kIsMasked>
  CUTE_DEVICE void serial_step(int n_block, Softmax& softmax, AccO& acc_o) {
    AccS acc_s;
    wait(&smem.control.full_k[k_position.stage], k_position.parity);
    begin_turn();
    start_qk(acc_s);
    end_turn();
    wgmma_wait<0>();
    pin_registers(acc_s);
    release_k();
    if constexpr (kIsMasked) { mask(acc_s, n_block); }
    auto scores = rows_and_columns(acc_s);
    float correction[Softmax::kNumRows];
    if (softmax.update(scores, scale_log2, exact_reference(), correction)) { rescale(acc_o, correction); }
    softmax.exponentiate(scores, scale_log2);
    Weights weights;
    convert(acc_s, weights);
    last_product(weights, acc_o);
  }

  // O += P V of the last weights.
  CUTE_DEVICE void last_product(Weights const& weights, AccO& acc_o) {
    v_position = k_position.previous();
    wait_v();
    start_pv(weights, acc_o);
    wgmma_wait<0>();
    pin_registers(acc_o);
    release_v();
  }

  CUTE_DEVICE void wait_v() const {
    Barrier* const full = Traits::kIsFp8 ? smem.control.full_vt : smem.control.full_v;
    wait(&full[v_position.stage], v_position.parity);
  }

  CUTE_DEVICE void release_k() {
    release(&smem.control.empty_k[k_position.stage]);
    k_position.advance();
  }

  CUTE_DEVICE void release_v() const {
    Barrier* const empty = kTransposesV<Traits> ? smem.control.empty_vt : smem.control.empty_v;
    release(&empty[v_position.stage]);
  }
};

}  // namespace attnsmith::sm90
