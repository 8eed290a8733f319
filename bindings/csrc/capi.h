/* SPDX-License-Identifier: Apache-2.0 */
/* The launcher's C API, for Python's ctypes and for hosts without Python: the kernel table, the miss handler, the
 * simulated device, and a forward call on plain pointers. Functions that can fail return 0 on success, else 1 with the
 * message in attnsmith_last_error (of the calling thread). Not responsible for torch: the ops are. */
#ifndef ATTNSMITH_CAPI_H_
#define ATTNSMITH_CAPI_H_

#include <stdint.h>

#include "attnsmith/kernel_desc.hpp"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
  void* ptr;
  int64_t batch, seqlen, nheads, head_dim; /* head_dim: whole 16-byte units */
  int64_t stride_batch, stride_row, stride_head; /* elements, whole 16-byte units */
  int64_t stride_head_dim; /* 1; for a column-major v of an 8-bit type stride_row is 1 instead, and head_dim is free */
} attnsmith_tensor;

typedef struct {
  const float* ptr; /* (batch, nheads_k); NULL: 1 */
  int64_t stride_batch, stride_head;
} attnsmith_descale;

typedef struct {
  int32_t dtype; /* the packed key's code: 1 fp16, 2 bf16, 3 e4m3, 4 e5m2 */
  int32_t causal;
  double softmax_scale;
  attnsmith_tensor q, k, v, out;
  float* lse; /* (batch, nheads, seqlen_q) */
  int32_t out_dtype; /* dtype, or fp16 or bf16 where that is an 8-bit type */
  int32_t pack_gqa;  /* -1 automatic, 0 never, 1 always */
  attnsmith_descale q_descale, k_descale, v_descale; /* 8-bit types only */
} attnsmith_fwd_args;

typedef struct {
  const char* library; /* path of libptxsim; NULL or "": leave the simulator */
  const char* device;  /* "a100" */
  const char* target;  /* "sm_80" */
  uint32_t max_smem_bytes;
  uint64_t seed;
  int32_t schedule;   /* 0 round robin, 1 random */
  int32_t async_mode; /* 0 late, 1 random */
  uint32_t num_threads;
  uint64_t step_budget;
  int32_t num_sms; /* sizes the grids of persistent kernels */
} attnsmith_sim_options;

/* What a call asks of dispatch; codes are the packed key's. */
typedef struct {
  int32_t dtype, out_dtype, head_dim, head_dim_v;
  int32_t is_causal, v_is_col_major, packs_gqa;
  int32_t can_use_tma; /* 0: the SM90 family cannot serve it */
  int64_t seqlen_q;
  const char* target; /* the device's compute capability: "sm_90" */
  int32_t has_usable; /* 1: the table has a kernel that computes it */
} attnsmith_problem;

typedef int (*attnsmith_miss_handler)(const attnsmith_problem* problem, char* message, uint64_t message_capacity);

int attnsmith_abi_version(void);
const char* attnsmith_last_error(void);

int attnsmith_register_kernel(const attnsmith_kernel_desc* desc); /* copies the images */
void attnsmith_clear_kernels(void); /* images stay in memory */
void attnsmith_set_miss_handler(attnsmith_miss_handler handler);

/* JSON; valid until the calling thread's next call that returns JSON. */
const char* attnsmith_dispatch_table(void);
const char* attnsmith_last_launch(void); /* {} after a call without work, or a failed one; "stats" when simulated */
const char* attnsmith_take_sim_error(void);

uint64_t attnsmith_num_encoded_tensor_maps(void); /* TMA descriptors encoded so far */
void attnsmith_forget_last_launch(void);
int attnsmith_set_simulation(const attnsmith_sim_options* options); /* of the calling thread */

/* Forward on the CUDA device `device_index`, or on the calling thread's simulated device when it is -1. */
int attnsmith_forward(const attnsmith_fwd_args* args, int device_index, void* stream);

#ifdef __cplusplus
}
#endif

#endif /* ATTNSMITH_CAPI_H_ */
