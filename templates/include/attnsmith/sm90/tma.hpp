// SPDX-License-Identifier: Apache-2.0
// Tile copies by the tensor memory accelerator. Coordinates count elements from the innermost dim. Each copy is issued
// by one thread. Not responsible for what a descriptor describes: params.hpp specifies it.
#pragma once

#include <cute/config.hpp>

#include "attnsmith/sm90/barriers.hpp"
#include "attnsmith/sm90/params.hpp"

namespace attnsmith::sm90 {

// What L2 should keep: Q and O pass through once, K and V are read by every query tile of their heads.
enum class CachePolicy : uint64_t { kStream = 0x12F0000000000000, kKeep = 0x14F0000000000000 };

CUTE_DEVICE void prefetch_descriptor(TmaDescriptor const& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

CUTE_DEVICE void tma_load(TmaDescriptor const& map, Barrier* barrier, CachePolicy policy, uint32_t smem, int c0, int c1,
                          int c2, int c3) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
      " [%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(smem),
      "l"(&map), "r"(smem_address(barrier)), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "l"(static_cast<uint64_t>(policy))
      : "memory");
}

CUTE_DEVICE void tma_load(TmaDescriptor const& map, Barrier* barrier, CachePolicy policy, uint32_t smem, int c0, int c1,
                          int c2, int c3, int c4) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
      " [%0], [%1, {%3, %4, %5, %6, %7}], [%2], %8;" ::"r"(smem),
      "l"(&map), "r"(smem_address(barrier)), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4),
      "l"(static_cast<uint64_t>(policy))
      : "memory");
}

// To the same place in every CTA of `cta_mask`, each of whose barriers at this place receives the bytes.
CUTE_DEVICE void tma_load_multicast(TmaDescriptor const& map, Barrier* barrier, CachePolicy policy, uint16_t cta_mask,
                                    uint32_t smem, int c0, int c1, int c2, int c3) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint"
      " [%0], [%1, {%3, %4, %5, %6}], [%2], %7, %8;" ::"r"(smem),
      "l"(&map), "r"(smem_address(barrier)), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "h"(cta_mask),
      "l"(static_cast<uint64_t>(policy))
      : "memory");
}

CUTE_DEVICE void tma_store(TmaDescriptor const& map, uint32_t smem, int c0, int c1, int c2, int c3) {
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(&map),
               "r"(smem), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
               : "memory");
}

CUTE_DEVICE void tma_store(TmaDescriptor const& map, uint32_t smem, int c0, int c1, int c2, int c3, int c4) {
  asm volatile("cp.async.bulk.tensor.5d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5, %6}], [%1];" ::"l"(&map),
               "r"(smem), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4)
               : "memory");
}

CUTE_DEVICE void tma_store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// Until the thread's committed stores have read their shared memory, which may then be overwritten.
CUTE_DEVICE void tma_store_wait_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }

}  // namespace attnsmith::sm90
