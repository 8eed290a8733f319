// SPDX-License-Identifier: Apache-2.0
// mbarriers in shared memory, named barriers, and the position in a ring of buffers. Not responsible for who waits for
// what: the mainloop's timeline says that.
#pragma once

#include <cute/config.hpp>
#include <cute/arch/util.hpp>

namespace attnsmith::sm90 {

using Barrier = uint64_t;

CUTE_DEVICE uint32_t smem_address(void const* pointer) { return cute::cast_smem_ptr_to_uint(pointer); }

CUTE_DEVICE void init_barrier(Barrier* barrier, int num_arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(smem_address(barrier)), "r"(num_arrivals) : "memory");
}

// Makes initialized barriers visible to the async proxy, and to the other CTAs of a cluster.
CUTE_DEVICE void fence_barrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

CUTE_DEVICE void arrive(Barrier* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(smem_address(barrier)) : "memory");
}

// At the same barrier of CTA `cta` of the cluster.
CUTE_DEVICE void arrive_remote(Barrier* barrier, uint32_t cta) {
  asm volatile(
      "{\n.reg .b32 remote;\nmapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [remote];\n}\n" ::"r"(smem_address(barrier)),
      "r"(cta)
      : "memory");
}

// One arrival, and num_bytes more that asynchronous copies must deliver before the phase ends.
CUTE_DEVICE void arrive_expect_bytes(Barrier* barrier, uint32_t num_bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(smem_address(barrier)), "r"(num_bytes)
               : "memory");
}

// Until the phase of this parity has ended.
CUTE_DEVICE void wait(Barrier* barrier, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred done;\nWAIT:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra DONE;\nbra WAIT;\nDONE:\n}\n" ::"r"(smem_address(barrier)),
      "r"(parity)
      : "memory");
}

// Named barriers: 0 is __syncthreads's.
CUTE_DEVICE void named_barrier_sync(int id, int num_threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(num_threads) : "memory");
}

CUTE_DEVICE void named_barrier_arrive(int id, int num_threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(num_threads) : "memory");
}

// Generic-proxy writes to shared memory become visible to TMA and wgmma.
CUTE_DEVICE void fence_async_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Position in a ring of kNumStages buffers: the buffer's index, and the parity of the phase to wait for on its full
// barrier. Its empty barrier, which a consumer arrives at, is one phase behind: a producer waits for parity ^ 1, which
// passes at once in the first round.
template <int kNumStages>
struct RingPosition {
  int stage = 0;
  uint32_t parity = 0;

  CUTE_DEVICE void advance() {
    if (++stage == kNumStages) {
      stage = 0;
      parity ^= 1;
    }
  }

  CUTE_DEVICE RingPosition previous() const {
    return stage == 0 ? RingPosition{kNumStages - 1, parity ^ 1} : RingPosition{stage - 1, parity};
  }
};

// One thread of a full warp.
CUTE_DEVICE bool elect_one() {
  uint32_t is_elected;
  asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.u32 %0, 1, 0, p;\n}\n" : "=r"(is_elected));
  return is_elected != 0;
}

// The compiler may take the result as the same in all lanes: for addresses and branches of a whole warp.
CUTE_DEVICE int warp_uniform(int x) { return __shfl_sync(0xffffffffu, x, 0); }

}  // namespace attnsmith::sm90
