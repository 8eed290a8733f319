// SPDX-License-Identifier: Apache-2.0
// The tiles of one kernel as shared memory holds them, and its barriers. The storage struct itself is rendered into each
// kernel. Not responsible for who uses a barrier when: see fwd_consumer.hpp's timeline.
#pragma once

#include <cute/numeric/math.hpp>

#include "attnsmith/sm90/barriers.hpp"
#include "attnsmith/sm90/wgmma.hpp"

namespace attnsmith::sm90 {

constexpr int kWarpgroupThreads = 128;
constexpr int kTileRing = 2;  // tile indices that the dynamic scheduler's producer may be ahead

constexpr int kNumVWarps = 3;   // FP8: warps of the producer warpgroup that prepare V

// V is transposed into buffers of its own. (A column-major V is prepared where it is.)
template <class Traits>
constexpr bool kTransposesV = Traits::kIsFp8 && !Traits::kVIsColMajor;

constexpr int align_1024(int bytes) { return (bytes + 1023) / 1024 * 1024; }

template <class Traits>
struct Tiles {
  static constexpr int kElementBytes = sizeof(typename Traits::Element);
  // Of one consumer warpgroup. O, of 16-bit elements, is staged where the warpgroup's Q was.
  using Q = KMajorTile<kRowsPerWarpgroup, Traits::kHeadDim * kElementBytes>;
  using O = KMajorTile<kRowsPerWarpgroup, Traits::kHeadDimV * 2>;
  static constexpr int kSlabBytes = align_1024(cute::max(Q::kBytes, O::kBytes));
  // Of one stage.
  using K = KMajorTile<Traits::kBlockN, Traits::kHeadDim * kElementBytes>;
  using V = MnMajorTile<Traits::kBlockN, Traits::kHeadDimV * kElementBytes>;
  // FP8: V transposed, in rows of whole 128-byte boxes.
  using Vt = KMajorTile<Traits::kHeadDimV, (Traits::kBlockN + 127) / 128 * 128>;
  // P of one warpgroup, in rows of whole 128-byte boxes.
  using P = KMajorTile<kRowsPerWarpgroup, (Traits::kBlockN * kElementBytes + 127) / 128 * 128>;
};

template <class Traits>
struct Control {
  Barrier full_q[Traits::kNumWarpgroups];   // producer's bytes -> the warpgroup
  Barrier empty_q[Traits::kNumWarpgroups];  // the warpgroup, O being stored -> producer
  Barrier full_k[Traits::kNumStages];       // producer's bytes -> all consumers
  Barrier empty_k[Traits::kNumStages];      // each warpgroup (of each CTA in the cluster) -> producer
  Barrier full_v[Traits::kNumStages];   // FP8: producer's bytes -> V's warps
  Barrier empty_v[Traits::kNumStages];  // FP8 with a transposed copy: V's warps -> producer
  Barrier full_vt[Traits::kIsFp8 ? Traits::kNumStages : 1];  // FP8: V's warps -> all consumers
  Barrier empty_vt[Traits::kIsFp8 ? Traits::kNumStages : 1];  // FP8 with a transposed copy: each warpgroup -> V's warps
  Barrier full_tile[kTileRing];   // dynamic scheduler: producer -> all consumer warps
  Barrier empty_tile[kTileRing];  // consumer warps -> producer
  int tile[kTileRing];
  float exact_reference[Traits::kBlockM];  // see softmax.hpp

  CUTE_DEVICE void init() {
    constexpr int kNumReaders = Traits::kNumWarpgroups * Traits::kClusterSize;
    constexpr int kNumVWarps = Traits::kIsFp8 ? sm90::kNumVWarps : 0;
    for (int i = 0; i < Traits::kNumWarpgroups; ++i) {
      init_barrier(&full_q[i], 1);
      init_barrier(&empty_q[i], 1);
    }
    for (int i = 0; i < Traits::kNumStages; ++i) {
      init_barrier(&full_k[i], 1);
      init_barrier(&empty_k[i], kNumReaders);
      init_barrier(&full_v[i], 1);
      init_barrier(&empty_v[i], kTransposesV<Traits> ? kNumVWarps : kNumReaders);
      if constexpr (Traits::kIsFp8) {
        init_barrier(&full_vt[i], kNumVWarps);
        init_barrier(&empty_vt[i], Traits::kNumWarpgroups);
      }
    }
    for (int i = 0; i < kTileRing; ++i) {
      init_barrier(&full_tile[i], 1);
      init_barrier(&empty_tile[i], 4 * Traits::kNumWarpgroups + kNumVWarps);
    }
    fence_barrier_init();
  }
};

}  // namespace attnsmith::sm90
