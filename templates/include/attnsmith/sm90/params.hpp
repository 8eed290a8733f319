// SPDX-License-Identifier: Apache-2.0
// Launch parameters of the SM90 kernels, and the shapes of their TMA boxes, which the host encodes into descriptors and
// the kernel assumes. Plain C++17 without a CUDA or a torch type. Not responsible for encoding: the launcher is.
#pragma once

#include "attnsmith/params.hpp"

namespace attnsmith {

// CUtensorMap: opaque, 128 bytes, aligned to 64.
struct alignas(64) TmaDescriptor {
  uint64_t words[16];
};

// What a tensor map describes, elements counted from the innermost dim:
//   Q, O          (head_dim, seqlen, nheads_q, batch)            box (cols, 64, 1, 1)
//   Q, O, packed  (head_dim, group, seqlen, nheads_k, batch)     box (cols, group, 64 / group, 1, 1)
//   K, V          (head_dim, seqlen, nheads_k, batch)            box (cols, block_n / cluster_size, 1, 1)
//   V, col-major  (seqlen, head_dim_v, nheads_k, batch)          box (cols, the kernel's head_dim_v / cluster_size, 1, 1)
// cols = box_row_bytes(row of the kernel's tile in bytes) / element size; these bytes are also the swizzle mode. The
// row is the kernel's head_dim, head_dim_v (V and O) or block_n (V, col-major). O's elements have the output's type.
// Elements outside the tensor read as zero and are not written.
constexpr int kRowsPerWarpgroup = 64;  // query rows of one consumer warpgroup: M of wgmma

// Bytes of a box row, which is the swizzle's span: the widest that divides the tile's row.
constexpr int box_row_bytes(int tile_row_bytes) {
  return tile_row_bytes % 128 == 0 ? 128 : tile_row_bytes % 64 == 0 ? 64 : 32;
}

// The dynamic scheduler's state in global memory: zero before the first launch, and after every launch.
struct TileCounter {
  uint32_t next_tile;
  uint32_t num_finished_ctas;
};

// FP8: what the tensors' elements are multiplied by, fp32 (batch, nheads_k); a null pointer means 1.
struct Descale {
  float const* ptr;
  int64_t batch_stride;
  int64_t head_stride;
};

struct FwdSm90Params {
  TmaDescriptor tma_q;
  TmaDescriptor tma_k;
  TmaDescriptor tma_v;
  TmaDescriptor tma_o;
  FwdParams fwd;  // num_m_blocks counts tiles of kBlockM rows; packed: of (kBlockM / 64) * (64 / group) query rows
  Descale q_descale;
  Descale k_descale;
  Descale v_descale;
  TileCounter* tile_counter;     // dynamic scheduler only
  int32_t num_tiles;             // num_m_blocks * nheads_q * batch; packed: nheads_k instead of nheads_q
  int32_t num_heads_per_l2;      // (batch, head) pairs that are worked on together, so that their K and V stay in L2
};

}  // namespace attnsmith
