// SPDX-License-Identifier: Apache-2.0
// SM80 forward mainloop: the work of one CTA on one key block, and the cp.async pipeline around it. The rendered kernel
// owns the order of the loop phases. Not responsible for choosing tiles (scheduler, mask) or for writing O (epilogue).
//
// Pipeline, kNumStages = S buffers each for K and V; every load is one commit group, in the order K0 V0 K1 V1 ...:
//
//   step j   wait K_j | barrier | issue V_{j+S-1} | S = Q K_j^T | wait V_j | barrier | row max | issue K_{j+S} | O += P V_j
//
//   barrier 1: K_j is visible to all warps, and all warps have finished reading V_{j-1}, whose buffer V_{j+S-1} takes.
//   barrier 2: V_j is visible to all warps, and all warps have finished reading K_j, whose buffer K_{j+S} takes.
//
// With S = 1, V_j flies during Q K_j^T and K_{j+1} during softmax and P V_j. A group is committed at each issue point
// even when nothing is left to load, so that both waits leave the same number of groups, 2 (S - 1), in flight.
//
// Registers: scores (block_m * block_n / threads) and O (block_m * head_dim_v / threads) take up to 192 of 255, so what
// lives across a step is kept small: indices are read anew rather than kept (scheduler.hpp), addresses within a tile
// are immediates, softmax keeps two numbers per row, and 16-bit probabilities take the place of their scores.
#pragma once

#include <cute/tensor.hpp>

#include "attnsmith/convert.hpp"
#include "attnsmith/mask.hpp"
#include "attnsmith/nonfinite.hpp"
#include "attnsmith/sm80/copy.hpp"
#include "attnsmith/sm80/ldmatrix.hpp"
#include "attnsmith/softmax.hpp"

namespace attnsmith::sm80 {

template <class Element>
struct MmaOp;
template <>
struct MmaOp<cutlass::half_t> {
  using type = cute::SM80_16x8x16_F32F16F16F32_TN;
};
template <>
struct MmaOp<cutlass::bfloat16_t> {
  using type = cute::SM80_16x8x16_F32BF16BF16F32_TN;
};

template <class Traits>
struct FwdMainloop {
  using Element = typename Traits::Element;
  using Mask = typename Traits::Mask;
  static constexpr int kBlockM = Traits::kBlockM;
  static constexpr int kBlockN = Traits::kBlockN;
  static constexpr int kHeadDim = Traits::kHeadDim;
  static constexpr int kHeadDimV = Traits::kHeadDimV;
  static constexpr int kNumStages = Traits::kNumStages;
  static constexpr int kNumWarps = Traits::kNumWarps;
  static constexpr int kNumThreads = kNumWarps * 32;
  static_assert(kBlockM % (16 * kNumWarps) == 0, "each warp owns whole 16-row MMA tiles of the query tile");
  static_assert(kBlockN % 16 == 0, "P is consumed 16 keys at a time");

  using SmemQ = SmemTile<kBlockM, kHeadDim>;
  using SmemK = SmemTile<kBlockN, kHeadDim>;
  using SmemV = SmemTile<kBlockN, kHeadDimV>;
  using SmemO = SmemTile<kBlockM, kHeadDimV>;

  struct SharedStorage {
    alignas(1024) Element q_or_o[cute::max(SmemQ::kSize, SmemO::kSize)];  // O is staged where Q was
    alignas(1024) Element k[kNumStages * SmemK::kSize];
    alignas(1024) Element v[kNumStages * SmemV::kSize];
  };

  // Warps side by side along M: MMA tile m of warp w starts at row 16 (m kNumWarps + w).
  using Op = typename MmaOp<Element>::type;
  using TiledMma = cute::TiledMMA<cute::MMA_Atom<Op>, cute::Layout<cute::Shape<cute::Int<kNumWarps>, cute::_1, cute::_1>>,
                                  cute::Tile<cute::Int<16 * kNumWarps>, cute::_16, cute::_16>>;
  static constexpr int kMmaM = kBlockM / (16 * kNumWarps);

  using LoaderQ = TileLoader<Element, kBlockM, kHeadDim, kNumThreads, Traits::kPadsHeadDim>;
  using LoaderK = TileLoader<Element, kBlockN, kHeadDim, kNumThreads, Traits::kPadsHeadDim>;
  using LoaderV = TileLoader<Element, kBlockN, kHeadDimV, kNumThreads, Traits::kPadsHeadDim>;

  static constexpr bool kIsScoreTileLarger = kBlockN > kHeadDimV;  // else the output tile is

  static constexpr int kNumRows = 2 * kMmaM;
  using Softmax = OnlineSoftmax<kNumRows>;
  using AccS = decltype(cute::partition_fragment_C(TiledMma{}, cute::Shape<cute::Int<kBlockM>, cute::Int<kBlockN>>{}));
  using AccO = decltype(cute::partition_fragment_C(TiledMma{}, cute::Shape<cute::Int<kBlockM>, cute::Int<kHeadDimV>>{}));

  SharedStorage& smem;
  LoaderK loader_k;
  LoaderV loader_v;
  Seqlen seqlen;
  int m_block;
  int thread;
  int stage = 0;  // buffer of the current key block

  CUTE_DEVICE FwdMainloop(SharedStorage& smem_, FwdParams const& params, TileCoord const& tile, Seqlen seqlen_,
                          int n_block, int thread_)
      : smem(smem_),
        loader_k(static_cast<Element const*>(params.k_ptr) + tile.batch * params.k_strides.batch +
                     tile.head_kv * params.k_strides.head,
                 params.k_strides.row, params.head_dim, n_block, thread_),
        loader_v(static_cast<Element const*>(params.v_ptr) + tile.batch * params.v_strides.batch +
                     tile.head_kv * params.v_strides.head,
                 params.v_strides.row, params.head_dim_v, n_block, thread_),
        seqlen(seqlen_),
        m_block(tile.m_block),
        thread(thread_) {}

  CUTE_DEVICE static int wrap(int s) { return s >= kNumStages ? s - kNumStages : s; }

  template <bool kIsBounded>
  CUTE_DEVICE void issue_k(int n_block, int to_stage) {
    if (n_block >= 0) {
      loader_k.template load<kIsBounded>(smem.k + to_stage * SmemK::kSize, seqlen.k - n_block * kBlockN);
    }
    cute::cp_async_fence();
  }

  template <bool kIsBounded>
  CUTE_DEVICE void issue_v(int n_block, int to_stage) {
    if (n_block >= 0) {
      loader_v.template load<kIsBounded>(smem.v + to_stage * SmemV::kSize, seqlen.k - n_block * kBlockN);
    }
    cute::cp_async_fence();
  }

  // Starts Q (in the first group) and the first S blocks of K and S - 1 of V.
  CUTE_DEVICE void prologue(FwdParams const& params, TileCoord const& tile, int n_block) {
    LoaderQ loader_q(static_cast<Element const*>(params.q_ptr) + tile.batch * params.q_strides.batch +
                         tile.head * params.q_strides.head,
                     params.q_strides.row, params.head_dim, m_block, thread);
    loader_q.template load<true>(smem.q_or_o, seqlen.q - m_block * kBlockM);
    CUTE_UNROLL
    for (int s = 0; s < kNumStages; ++s) {
      issue_k<true>(n_block - s, s);
      if (s + 1 < kNumStages) { issue_v<true>(n_block - s, s); }
    }
    if (params.q_sign <= 0) { fold_sign_into_q(params.q_sign); }
  }

  // The softmax assumes a positive scale: a negative one flips Q's sign, a zero one makes Q zero, NaN where it is
  // not finite (both exact).
  CUTE_DEVICE void fold_sign_into_q(int sign) {
    cute::cp_async_wait<0>();
    __syncthreads();
    uint32_t* words = reinterpret_cast<uint32_t*>(smem.q_or_o);
    CUTE_NO_UNROLL
    for (int i = thread; i < SmemQ::kSize / 2; i += kNumThreads) {
      words[i] = sign < 0 ? words[i] ^ 0x80008000u : times_zero<Element>(words[i]);
    }
  }

  CUTE_DEVICE static void mma(float* acc, uint32_t const (&a)[4], uint32_t b0, uint32_t b1) {
    Op::fma(acc[0], acc[1], acc[2], acc[3], a[0], a[1], a[2], a[3], b0, b1, acc[0], acc[1], acc[2], acc[3]);
  }

  // Thread index for Q's and V's addresses. Measured: in the largest tiles (192 accumulators per thread), keeping these
  // addresses across the loop spills where O is the larger fragment, and finding them anew does where the scores are.
  // Elsewhere they are kept: finding them costs about 30 instructions per step.
  static constexpr bool kIsFull = kBlockM * (kBlockN + kHeadDimV) / kNumThreads >= 192;
  CUTE_DEVICE int operand_thread() const { return kIsFull && !kIsScoreTileLarger ? thread_index() : thread; }

  // acc_s = Q K^T of the current stage.
  CUTE_DEVICE void gemm_qk(AccS& acc_s) const {
    using namespace cute;
    using BlocksQ = MatrixBlocks<kBlockM, kHeadDim, true>;
    using BlocksK = MatrixBlocks<kBlockN, kHeadDim, false>;
    int const q_thread = operand_thread();
    uint32_t const q_base =
        cast_smem_ptr_to_uint(smem.q_or_o) + BlocksQ::lane_offset(q_thread % 32, q_thread / 32 * 16);
    uint32_t const k_base = cast_smem_ptr_to_uint(smem.k + stage * SmemK::kSize) + BlocksK::lane_offset(thread % 32);
    CUTE_UNROLL
    for (int k = 0; k < kHeadDim / 16; ++k) {
      uint32_t tSrQ[kMmaM][4];
      CUTE_UNROLL
      for (int m = 0; m < kMmaM; ++m) { ldmatrix_x4(tSrQ[m], BlocksQ::address(q_base, m * kNumWarps, k)); }
      CUTE_UNROLL
      for (int n = 0; n < kBlockN / 16; ++n) {
        uint32_t tSrK[4];
        ldmatrix_x4(tSrK, BlocksK::address(k_base, n, k));
        CUTE_UNROLL
        for (int m = 0; m < kMmaM; ++m) {
          mma(&acc_s(0, m, 2 * n), tSrQ[m], tSrK[0], tSrK[1]);
          mma(&acc_s(0, m, 2 * n + 1), tSrQ[m], tSrK[2], tSrK[3]);
        }
      }
    }
  }

  // acc_o += P V of the current stage, P = weights of acc_s.
  template <bool kIsExact>
  CUTE_DEVICE void gemm_pv(AccS const& acc_s, float scale_log2, Softmax& softmax, AccO& acc_o) const {
    using namespace cute;
    using BlocksV = MatrixBlocks<kBlockN, kHeadDimV, true>;
    uint32_t const v_base =
        cast_smem_ptr_to_uint(smem.v + stage * SmemV::kSize) + BlocksV::lane_offset(operand_thread() % 32);
    constexpr int kNumK = kBlockN / 16, kNumN = kHeadDimV / 16;
    uint32_t tOrP[kNumK][kMmaM][4];
    CUTE_UNROLL
    for (int k = 0; k < kNumK; ++k) { weights_slice<kIsExact>(acc_s, k, scale_log2, softmax, tOrP[k]); }
    // Outer over the larger fragment, whose registers then free up (P) or settle (O) one by one: measured, the other
    // order spills at head_dim 64 and 128.
    CUTE_UNROLL
    for (int i = 0; i < kNumK * kNumN; ++i) {
      int const k = kIsScoreTileLarger ? i / kNumN : i % kNumK;
      int const n = kIsScoreTileLarger ? i % kNumN : i / kNumK;
      uint32_t tOrV[4];
      ldmatrix_x4_trans(tOrV, BlocksV::address(v_base, k, n));
      CUTE_UNROLL
      for (int m = 0; m < kMmaM; ++m) {
        mma(&acc_o(0, m, 2 * n), tOrP[k][m], tOrV[0], tOrV[1]);
        mma(&acc_o(0, m, 2 * n + 1), tOrP[k][m], tOrV[2], tOrV[3]);
      }
    }
  }

  // Scores of keys [16 k, 16 k + 16) -> A operand of the P V MMA. The accumulators of two neighbouring n8 tiles are
  // exactly the A fragment of one k16 MMA (row halves, then column halves), so P never crosses threads.
  template <bool kIsExact>
  CUTE_DEVICE static void weights_slice(AccS const& acc_s, int k, float scale_log2, Softmax& softmax,
                                        uint32_t (&tOrP)[kMmaM][4]) {
    CUTE_UNROLL
    for (int m = 0; m < kMmaM; ++m) {
      CUTE_UNROLL
      for (int i = 0; i < 4; ++i) {
        int const row = 2 * m + i % 2;
        float const* s = &acc_s(2 * (i % 2), m, 2 * k + i / 2);
        float const p0 = softmax.template weight<kIsExact>(scale_log2, s[0], row);
        float const p1 = softmax.template weight<kIsExact>(scale_log2, s[1], row);
        softmax.row_sum[row] += p0;
        softmax.row_sum[row] += p1;
        tOrP[m][i] = pack<Element>(p0, p1);
      }
    }
  }

  // One key block. kIsMasked: some row may not see some column (mask boundary or the end of the keys), and softmax takes
  // its exact form; otherwise every score counts.
  // is_careful: V values that are not finite become 0, see nonfinite.hpp.
  template <bool kIsMasked>
  CUTE_DEVICE void step(FwdParams const& params, int n_block, Softmax& softmax, AccO& acc_o,
                        int const* is_careful = nullptr) {
    using namespace cute;
    cp_async_wait<2 * (kNumStages - 1)>();
    __syncthreads();
    issue_v<kIsMasked>(n_block - (kNumStages - 1), wrap(stage + kNumStages - 1));
    if constexpr (kIsMasked && Mask::kHidesKeys) {
      if (*is_careful) {
        cp_async_wait<0>();
        __syncthreads();
        zero_nonfinite<Element, SmemV::kSize, kNumThreads>(smem.v + stage * SmemV::kSize, thread_index());
      }
    }
    AccS acc_s;  // ((2,2),MMA_M,MMA_N)
    clear(acc_s);
    gemm_qk(acc_s);
    if constexpr (kIsMasked) {
      Tensor cS = make_identity_tensor(Shape<Int<kBlockM>, Int<kBlockN>>{});
      Tensor tScS = TiledMma{}.get_slice(thread).partition_C(cS);
      apply_mask<Mask>(acc_s, tScS, m_block * kBlockM, n_block * kBlockN, seqlen);
    }
    cp_async_wait<2 * (kNumStages - 1)>();
    __syncthreads();

    Tensor scores = make_tensor(acc_s.data(), accumulator_rowcol(acc_s.layout()));
    softmax.template update_max<kIsMasked>(params, scores, acc_o);
    issue_k<false>(n_block - kNumStages, stage);  // never the last block of keys, so every row exists
    gemm_pv<kIsMasked>(acc_s, params.scale_log2, softmax, acc_o);
    stage = wrap(stage + 1);
  }
};

}  // namespace attnsmith::sm80
