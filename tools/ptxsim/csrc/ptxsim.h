// SPDX-License-Identifier: Apache-2.0
// The C ABI of ptxsim, a functional simulator that executes PTX on the CPU. This header is responsible for the
// boundary only: plain structs, opaque handles, JSON strings. It is not responsible for any semantics, and nothing
// here needs C++. Every char* that a function hands out is released with ptxsim_free.
#ifndef PTXSIM_H_
#define PTXSIM_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ptxsim_module ptxsim_module;

// One range of host memory that a launch may touch as global memory. `name` appears in error messages.
typedef struct {
  uint64_t base, bytes;
  const char* name;
  int32_t writable;
  int32_t pad;
} ptxsim_allocation;

typedef struct {
  const char* device;  // "a100" "rtx3090" "rtx4090" "h100" "h200"
  uint32_t grid[3], block[3], cluster[3];
  uint32_t dynamic_smem_bytes;
  uint32_t num_threads;  // host threads, 0 = all cores
  uint64_t seed;
  int32_t schedule;       // 0 round robin, 1 seeded random warp interleaving
  int32_t async_mode;     // 0 as late as the ISA allows, 1 seeded random point
  uint64_t step_budget;   // warp instructions per launch, 0 = default (large)
  uint32_t check_flags;   // bit0 memory bounds, bit1 shared initialized bits, bit2 no shared race check, bit3 no proxy check; default 3
  uint32_t collect_stats; // 0/1
} ptxsim_launch_config;

// NULL on error; *error_json then holds {"kind","message","line",...}.
ptxsim_module* ptxsim_load(const char* ptx, size_t size, char** error_json);

// Like ptxsim_load, but unsupported instructions are collected (ptxsim_describe lists them) and a launch of an entry
// that contains one refuses.
ptxsim_module* ptxsim_parse(const char* ptx, size_t size, char** error_json);

void ptxsim_unload(ptxsim_module*);

// JSON: version, target, entries:[{name, params:[{name,size,align}], static_smem, reqntid, maxntid, registers:{...},
// instructions}], unsupported:[{line,text,reason}].
char* ptxsim_describe(const ptxsim_module*);

// 0 on success. stats_json (may be NULL) receives the launch's statistics, error_json the error.
int ptxsim_launch(ptxsim_module*, const char* kernel, const ptxsim_launch_config*, const void* param_bytes,
                  size_t param_size, const ptxsim_allocation* allocations, size_t num_allocations, char** stats_json,
                  char** error_json);

// A tensor map for the simulator in the 128 bytes at `map`, from the arguments of cuTensorMapEncodeTiled (strides in
// bytes, for dimensions 1 and up; enumerators by value). 0 on success. Interleaved layouts are not simulated.
int ptxsim_encode_tensor_map(void* map, uint32_t type, uint32_t rank, uint64_t address, const uint64_t* extents,
                             const uint64_t* strides, const uint32_t* box, const uint32_t* element_strides,
                             int32_t interleave, int32_t swizzle, int32_t l2_promotion, int32_t oob_fill,
                             char** error_json);

char* ptxsim_devices(void);  // JSON device table
void ptxsim_free(char*);

#ifdef __cplusplus
}
#endif

#endif  // PTXSIM_H_
