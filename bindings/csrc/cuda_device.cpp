// SPDX-License-Identifier: Apache-2.0
// The CUDA device: loads a cubin once per (kernel, device) and launches on the caller's stream. No synchronization, so
// a warm launch can be captured in a CUDA graph. Not responsible for choosing stream or kernel.
#include <atomic>
#include <mutex>
#include <string>

#include "cuda_driver.hpp"
#include "device.hpp"
#include "error.hpp"
#include "tile_counters.hpp"

namespace attnsmith {

namespace {

using cuda::check;
using cuda::driver;

// Makes a device's primary context current for a scope and leaves the caller's as it was.
class ContextGuard {
 public:
  explicit ContextGuard(cuda::Context context) {
    cuda::Context current = nullptr;
    check(driver().context_get_current(&current), "cuCtxGetCurrent", "the calling thread");
    if (current == context) return;
    check(driver().context_push(context), "cuCtxPushCurrent", "the device's primary context");
    pushed_ = true;
  }
  ~ContextGuard() {
    cuda::Context popped = nullptr;
    if (pushed_) driver().context_pop(&popped);
  }
  ContextGuard(ContextGuard const&) = delete;
  ContextGuard& operator=(ContextGuard const&) = delete;

 private:
  bool pushed_ = false;
};

class CudaDevice final : public Device {
 public:
  explicit CudaDevice(int index) : index_(index) {
    std::string const about = "cuda:" + std::to_string(index);
    cuda::DeviceHandle handle = 0;
    check(driver().init(0), "cuInit", about.c_str());
    check(driver().device_get(&handle, index), "cuDeviceGet", about.c_str());
    limits_.target.major = attribute(handle, cuda::kAttributeMajor, about);
    limits_.target.minor = attribute(handle, cuda::kAttributeMinor, about);
    limits_.max_smem_bytes = static_cast<uint32_t>(attribute(handle, cuda::kAttributeSmemOptin, about));
    limits_.num_sms = attribute(handle, cuda::kAttributeNumSms, about);
    check(driver().primary_context_retain(&context_, handle), "cuDevicePrimaryCtxRetain", about.c_str());
  }

  DeviceLimits limits() const override { return limits_; }
  int index() const override { return index_; }

  void launch(Kernel const& kernel, Launch const& launch, void* stream) override {
    ContextGuard const guard(context_);
    cuda::Function function = load(kernel);
    void* arguments[] = {const_cast<void*>(launch.params)};
    check(driver().launch_kernel(function, launch.grid, 1, 1, kernel.num_threads, 1, 1, kernel.smem_bytes, stream,
                                 arguments, nullptr),
          "cuLaunchKernel", kernel.name.c_str());
  }

  TmaDescriptor encode(TensorMap const& map) override {
    ContextGuard const guard(context_);
    TmaDescriptor descriptor{};
    uint32_t const element_strides[5] = {1, 1, 1, 1, 1};
    check(driver().tensor_map_encode_tiled(&descriptor, static_cast<int>(map.type), map.rank,
                                           const_cast<void*>(map.address), map.sizes, map.strides, map.box,
                                           element_strides, 0, swizzle_code(map.swizzle_bytes), kL2Promotion256B, 0),
          "cuTensorMapEncodeTiled", "a tensor of the call");
    return descriptor;
  }

  TileCounter* tile_counter(void* stream) override {
    ContextGuard const guard(context_);
    return tile_counters_.get(stream);
  }

 private:
  static int attribute(cuda::DeviceHandle handle, int which, std::string const& about) {
    int value = 0;
    check(driver().device_get_attribute(&value, which, handle), "cuDeviceGetAttribute", about.c_str());
    return value;
  }

  cuda::Function load(Kernel const& kernel) {
    auto& slot = kernel.cuda_functions[static_cast<size_t>(index_)];
    if (void* loaded = slot.load(std::memory_order_acquire)) return loaded;
    std::lock_guard lock(mutex_);
    if (void* loaded = slot.load(std::memory_order_acquire)) return loaded;
    char const* name = kernel.name.c_str();
    if (kernel.cubin.empty()) {
      fail("load " + kernel.name, "a kernel without a cubin", "kernels built for " + limits_.target.str(),
           "Rebuild it with attnsmith build.");
    }
    cuda::Module module = nullptr;
    cuda::Function function = nullptr;
    check(driver().module_load_data(&module, kernel.cubin.data()), "cuModuleLoadData", name);
    check(driver().module_get_function(&function, module, name), "cuModuleGetFunction", name);
    if (kernel.smem_bytes > cuda::kDefaultDynamicSmem) {
      check(driver().function_set_attribute(function, cuda::kFunctionMaxDynamicSmem, static_cast<int>(kernel.smem_bytes)),
            "cuFuncSetAttribute", name);
    }
    slot.store(function, std::memory_order_release);
    return function;
  }

  int index_;
  cuda::Context context_ = nullptr;
  DeviceLimits limits_;
  TileCounters tile_counters_;
  std::mutex mutex_;
};

}  // namespace

Device& cuda_device(int index) {
  static std::mutex mutex;
  static std::atomic<CudaDevice*> devices[kMaxDevices];  // never freed: kernels hold functions of their contexts
  if (index < 0 || index >= kMaxDevices) {
    fail("use a CUDA device", "cuda:" + std::to_string(index), "cuda:0 to cuda:" + std::to_string(kMaxDevices - 1),
         "Move the tensors to one of these.");
  }
  auto& slot = devices[index];
  if (CudaDevice* device = slot.load(std::memory_order_acquire)) return *device;
  std::lock_guard lock(mutex);
  if (slot.load(std::memory_order_acquire) == nullptr) slot.store(new CudaDevice(index), std::memory_order_release);
  return *slot.load(std::memory_order_acquire);
}

}  // namespace attnsmith
