// SPDX-License-Identifier: Apache-2.0
// Implements cuda_driver.hpp.
#include "cuda_driver.hpp"

#include <dlfcn.h>

#include <cstdlib>
#include <string>

#include "error.hpp"

namespace attnsmith::cuda {

namespace {

template <typename Entry>
void resolve(void* library, char const* symbol, Entry& entry) {
  entry = reinterpret_cast<Entry>(dlsym(library, symbol));
  if (entry == nullptr) {
    fail("open the CUDA driver", std::string("a library without ") + symbol, "a driver for CUDA 12 or newer",
         "Update the NVIDIA driver.");
  }
}

Driver open_driver() {
  char const* name = std::getenv("ATTNSMITH_LIBCUDA");
  if (name == nullptr || *name == '\0') name = "libcuda.so.1";
  void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    char const* reason = dlerror();
    fail("open the CUDA driver", reason ? reason : "an unknown error", "an installed NVIDIA driver",
         "Install it, or run the kernels on CPU tensors inside attnsmith.simulate(\"a100\").");
  }
  Driver driver{};
  resolve(library, "cuInit", driver.init);
  resolve(library, "cuDeviceGet", driver.device_get);
  resolve(library, "cuDeviceGetAttribute", driver.device_get_attribute);
  resolve(library, "cuDevicePrimaryCtxRetain", driver.primary_context_retain);
  resolve(library, "cuCtxGetCurrent", driver.context_get_current);
  resolve(library, "cuCtxPushCurrent_v2", driver.context_push);
  resolve(library, "cuCtxPopCurrent_v2", driver.context_pop);
  resolve(library, "cuModuleLoadData", driver.module_load_data);
  resolve(library, "cuModuleGetFunction", driver.module_get_function);
  resolve(library, "cuFuncSetAttribute", driver.function_set_attribute);
  resolve(library, "cuLaunchKernel", driver.launch_kernel);
  resolve(library, "cuTensorMapEncodeTiled", driver.tensor_map_encode_tiled);
  resolve(library, "cuMemAlloc_v2", driver.mem_alloc);
  resolve(library, "cuMemsetD8Async", driver.memset_d8_async);
  resolve(library, "cuStreamCreate", driver.stream_create);
  resolve(library, "cuStreamDestroy_v2", driver.stream_destroy);
  resolve(library, "cuStreamSynchronize", driver.stream_synchronize);
  resolve(library, "cuStreamIsCapturing", driver.stream_is_capturing);
  resolve(library, "cuStreamGetId", driver.stream_get_id);
  resolve(library, "cuThreadExchangeStreamCaptureMode", driver.exchange_capture_mode);
  resolve(library, "cuGetErrorName", driver.get_error_name);
  resolve(library, "cuGetErrorString", driver.get_error_string);
  return driver;
}

}  // namespace

Driver const& driver() {
  static Driver const opened = open_driver();  // a throw leaves it unset, so a later call tries again
  return opened;
}

void check(Result result, char const* call, char const* about) {
  if (result == kSuccess) return;
  char const* name = nullptr;
  char const* text = nullptr;
  driver().get_error_name(result, &name);
  driver().get_error_string(result, &text);
  fail(std::string(call) + " for " + about, std::string(name ? name : "an unknown error") + " (" + (text ? text : "?") + ")",
       "CUDA_SUCCESS", "Run attnsmith doctor; an earlier failed kernel on this device also shows up here.");
}

}  // namespace attnsmith::cuda
