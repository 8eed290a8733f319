/* SPDX-License-Identifier: Apache-2.0 */
/* One compiled kernel as data, and the table of them that an AOT library exports. Plain C, so that the library, the
 * launcher and Python's ctypes share it. Not responsible for the search order: the launcher's kernel table is. */
#ifndef ATTNSMITH_KERNEL_DESC_HPP_
#define ATTNSMITH_KERNEL_DESC_HPP_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ATTNSMITH_KERNEL_TABLE_VERSION 2

typedef struct {
  const char* name;
  uint64_t packed_key; /* attnsmith.codegen.dispatch.pack_key */
  const char* target;  /* "sm_80" */
  int32_t block_m, block_n, num_warps, num_stages;
  uint32_t smem_bytes, num_threads;
  int32_t priority;     /* lower is better */
  int32_t max_seqlen_q; /* 0: no limit */
  int32_t source;       /* 0 built-in, 1 AOT, 2 JIT */
  const void* cubin;
  uint64_t cubin_bytes;
  const char* ptx;
  uint64_t ptx_bytes;
  int32_t scheduler;    /* 0 single, 1 static, 2 dynamic: attnsmith.codegen.spec.Scheduler */
  int32_t cluster_size; /* CTAs per cluster; the grid is a multiple of it */
  int32_t ctas_per_sm;  /* resident at once: sizes a persistent kernel's grid */
} attnsmith_kernel_desc;

typedef struct {
  int32_t version; /* ATTNSMITH_KERNEL_TABLE_VERSION */
  int32_t num_kernels;
  const attnsmith_kernel_desc* kernels;
} attnsmith_kernel_table;

/* Exported by an AOT library; found with dlsym. The table lives as long as the library is loaded. */
const attnsmith_kernel_table* attnsmith_kernels(void);

#ifdef __cplusplus
}
#endif

#endif /* ATTNSMITH_KERNEL_DESC_HPP_ */
