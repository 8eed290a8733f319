// SPDX-License-Identifier: Apache-2.0
// FP8: V as P V's operand. wgmma takes 8-bit operands K-major only, so that V must lie with its keys contiguous; and its
// keys must be in the order in which a thread's weights, packed from score accumulators, appear in the A fragment:
// position 4 q + 2 b + c of each 16 holds key 8 b + 2 q + c (q < 4; b, c < 2). Done by warps of the producer warpgroup,
// by bytes in registers. Not responsible for barriers: fwd_producer.hpp is.
#pragma once

#include "attnsmith/sm90/storage.hpp"

namespace attnsmith::sm90 {

CUTE_DEVICE uint32_t permute_bytes(uint32_t low, uint32_t high, uint32_t selector) {
  uint32_t result;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(result) : "r"(low), "r"(high), "r"(selector));
  return result;
}

CUTE_DEVICE void ldmatrix_x4_trans(uint32_t (&words)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(address)
               : "memory");
}

// Four 8x8 matrices of 16-bit elements; lane l gives the address of row l % 8 of matrix l / 8.
CUTE_DEVICE void stmatrix_x4(uint32_t address, uint32_t const (&words)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(words[0]),
               "r"(words[1]), "r"(words[2]), "r"(words[3])
               : "memory");
}

// From (kBlockN keys, kHeadDimV) as TMA wrote it to (kHeadDimV, kBlockN).
template <class Traits>
CUTE_DEVICE void transpose_v(uint32_t from, uint32_t to, int warp, int num_warps) {
  using V = typename Tiles<Traits>::V;
  using Vt = typename Tiles<Traits>::Vt;
  constexpr int kColumnGroups = Traits::kHeadDimV / 16;
  constexpr int kChunksPerBox = V::kRowBytes / 16;
  int const lane = threadIdx.x % 32;
  // 32 keys x 16 columns at a time, two such units in flight.
#pragma unroll 2
  for (int unit = warp; unit < Traits::kBlockN / 32 * kColumnGroups; unit += num_warps) {
    int const columns = unit % kColumnGroups;
    int const keys = unit / kColumnGroups;
    // A 16-bit unit of matrix i is 2 columns of a key in [8 i, 8 i + 8): transposed, a lane holds columns 2 t and
    // 2 t + 1 (t = lane / 4) of keys 2 q and 2 q + 1 (q = lane % 4).
    uint32_t in[4], out[4];
    ldmatrix_x4_trans(in, from + columns / kChunksPerBox * Traits::kBlockN * V::kRowBytes +
                              swizzled<V::kRowBytes>((keys * 32 + lane) * V::kRowBytes + columns % kChunksPerBox * 16));
    // A stored matrix takes column 2 t of lanes t < 4 and 2 t + 1 of the others, the next one the rest: 8 rows that differ
    // modulo 8 and so, swizzled, meet no bank twice.
    uint32_t const even = lane < 16 ? 0x6420 : 0x7531;
    CUTE_UNROLL
    for (int half = 0; half < 2; ++half) {
      out[2 * half] = permute_bytes(in[2 * half], in[2 * half + 1], even);
      out[2 * half + 1] = permute_bytes(in[2 * half], in[2 * half + 1], even ^ 0x1111);
    }
    int const t = lane % 8;
    int const row = columns * 16 + 2 * t + (lane / 8 % 2 ^ t / 4);
    int const chunk = keys * 2 + lane / 16;
    stmatrix_x4(to + chunk / 8 * Traits::kHeadDimV * 128 + swizzled<128>(row * 128 + chunk % 8 * 16), out);
  }
}

// (kHeadDimV, kBlockN) as TMA wrote it from a column-major V: reorders the keys of each 16 in place.
template <class Traits>
CUTE_DEVICE void permute_keys(uint32_t tile, int thread, int num_threads) {
  CUTE_NO_UNROLL
  for (int i = thread; i < Tiles<Traits>::Vt::kBytes / 16; i += num_threads) {
    uint32_t const address = tile + i * 16;
    uint32_t w0, w1, w2, w3;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(w0), "=r"(w1), "=r"(w2), "=r"(w3)
                 : "r"(address)
                 : "memory");
    uint32_t const out[4] = {permute_bytes(w0, w2, 0x5410), permute_bytes(w0, w2, 0x7632),
                             permute_bytes(w1, w3, 0x5410), permute_bytes(w1, w3, 0x7632)};
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(out[0]), "r"(out[1]), "r"(out[2]),
                 "r"(out[3])
                 : "memory");
  }
}

}  // namespace attnsmith::sm90
