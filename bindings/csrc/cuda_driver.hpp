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
using DevicePointer = unsigned long long;

inline constexpr Result kSuccess = 0;
inline constexpr int kAttributeNumSms = 16;          // CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
inline constexpr int kAttributeMajor = 75;           // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
inline constexpr int kAttributeMinor = 76;           // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR
inline constexpr int kAttributeSmemOptin = 97;       // CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
inline constexpr int kFunctionMaxDynamicSmem = 8;    // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
inline constexpr unsigned kNonBlockingStream = 1;    // CU_STREAM_NON_BLOCKING
inline constexpr int kRelaxedCapture = 2;            // CU_STREAM_CAPTURE_MODE_RELAXED
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
  Result (*tensor_map_encode_tiled)(void* map, int type, uint32_t rank, void* address, uint64_t const* sizes,
                                    uint64_t const* strides, uint32_t const* box, uint32_t const* element_strides,
                                    int interleave, int swizzle, int l2_promotion, int oob_fill);
  Result (*mem_alloc)(DevicePointer*, size_t);
  Result (*memset_d8_async)(DevicePointer, unsigned char, size_t, Stream);
  Result (*stream_create)(Stream*, unsigned);
  Result (*stream_destroy)(Stream);
  Result (*stream_synchronize)(Stream);
  Result (*stream_is_capturing)(Stream, int*);  // 0: no
  Result (*stream_get_id)(Stream, unsigned long long*);  // unique in the process, unlike the handle
  Result (*exchange_capture_mode)(int*);  // of the calling thread
  Result (*get_error_name)(Result, char const**);
  Result (*get_error_string)(Result, char const**);
};

// The driver, opened on first use; throws the four-part error when the machine has none. ATTNSMITH_LIBCUDA names
// another library than libcuda.so.1.
Driver const& driver();

// Throws with the driver's words unless result is success.
void check(Result result, char const* call, char const* about);

}  // namespace attnsmith::cuda
