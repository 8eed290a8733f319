// SPDX-License-Identifier: Apache-2.0
// The few CUDA driver entry points that the launcher calls, resolved with dlopen, so that this library builds without
// a CUDA toolkit and loads without a driver. Not responsible for using them: cuda_device.cpp is.
#pragma once

#include <cstddef>
#include <cstdint>

namespace attnsmith::cuda {

// ABI of cuda.h: opaque handles, int results.
using Result = int;
using DeviceHandle = int;
using Context = void*;
using Module = void*;
using Function = void*;
using Stream = void*;

inline constexpr Result kSuccess = 0;
inline constexpr int kAttributeMajor = 75;           // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
inline constexpr int kAttributeMinor = 76;           // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR
inline constexpr int kAttributeSmemOptin = 97;       // CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
inline constexpr int kFunctionMaxDynamicSmem = 8;    // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
inline constexpr unsigned kDefaultDynamicSmem = 48 * 1024;  // more needs the function attribute

struct Driver {
  Result (*init)(unsigned);
  Result (*device_get)(DeviceHandle*, int);
  Result (*device_get_attribute)(int*, int, DeviceHandle);
  Result (*primary_context_retain)(Context*, DeviceHandle);
  Result (*context_get_current)(Context*);
  Result (*context_push)(Context);
  Result (*context_pop)(Context*);
  Result (*module_load_data)(Module*, void const*);
  Result (*module_get_function)(Function*, Module, char const*);
  Result (*function_set_attribute)(Function, int, int);
  Result (*launch_kernel)(Function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Stream,
                          void**, void**);
  Result (*get_error_name)(Result, char const**);
  Result (*get_error_string)(Result, char const**);
};

// The driver, opened on first use; throws the four-part error when the machine has none. ATTNSMITH_LIBCUDA names
// another library than libcuda.so.1.
Driver const& driver();

// Throws with the driver's words unless result is success.
void check(Result result, char const* call, char const* about);

}  // namespace attnsmith::cuda
