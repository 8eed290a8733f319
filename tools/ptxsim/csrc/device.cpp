// SPDX-License-Identifier: Apache-2.0
// Device limits from NVIDIA's CUDA programming guide (technical specifications per compute capability) and launch
// validation. Not responsible for timing: nothing here models speed.
#include "device.hpp"

#include "error.hpp"

namespace ptxsim {
namespace {

constexpr Device kDevices[] = {
    {"a100", "NVIDIA A100", 80, 108, 166912, 167936, 1024, 65536, 1024, 2048, 32, 1},
    {"rtx3090", "NVIDIA GeForce RTX 3090", 86, 82, 101376, 102400, 1024, 65536, 1024, 1536, 16, 1},
    {"rtx4090", "NVIDIA GeForce RTX 4090", 89, 128, 101376, 102400, 1024, 65536, 1024, 1536, 24, 1},
    {"h100", "NVIDIA H100", 90, 132, 232448, 233472, 1024, 65536, 1024, 2048, 32, 8},
    {"h200", "NVIDIA H200", 90, 132, 232448, 233472, 1024, 65536, 1024, 2048, 32, 8},
};

[[noreturn]] void refuse(const std::string& kernel, const std::string& code, const std::string& what) {
  SimError error("launch", code + ": " + kernel + " " + what);
  error.kernel = kernel;
  throw error;
}

std::string dims(const u32* d) {
  return "(" + std::to_string(d[0]) + ", " + std::to_string(d[1]) + ", " + std::to_string(d[2]) + ")";
}

}  // namespace

const Device* find_device(const std::string& name) {
  for (const Device& device : kDevices)
    if (name == device.name) return &device;
  return nullptr;
}

std::string device_names() {
  std::string out;
  for (const Device& device : kDevices) out += (out.empty() ? "" : ", ") + std::string(device.name);
  return out;
}

std::string devices_json() {
  std::string out = "[";
  for (const Device& d : kDevices) {
    if (out.size() > 1) out += ",";
    auto field = [&](const char* key, u32 value) { out += ",\"" + std::string(key) + "\":" + std::to_string(value); };
    out += "{\"name\":" + json_quote(d.name) + ",\"product\":" + json_quote(d.product);
    out += ",\"target\":\"sm_" + std::to_string(d.sm) + "\"";
    field("sm_count", d.sm_count), field("smem_per_block", d.smem_per_block), field("smem_per_sm", d.smem_per_sm);
    field("smem_reserved_per_block", d.smem_reserved), field("registers_per_sm", d.registers_per_sm);
    field("max_threads_per_block", d.max_threads_per_block), field("max_threads_per_sm", d.max_threads_per_sm);
    field("max_ctas_per_sm", d.max_ctas_per_sm), field("max_cluster", d.max_cluster), field("warp_size", kLanes);
    out += "}";
  }
  return out + "]";
}

void validate_launch(const Module& module, const Entry& entry, const Device& device, const ptxsim_launch_config& c,
                     size_t param_size) {
  const std::string& k = entry.name;
  std::string on = std::string(" on ") + device.name;
  bool runs = module.arch_specific ? module.sm == device.sm : module.sm <= device.sm;
  if (!runs)
    refuse(k, "CUDA_ERROR_NO_BINARY_FOR_GPU",
           "is compiled for " + module.target + "; " + device.name + " is sm_" + std::to_string(device.sm));
  for (int i = 0; i < 3; ++i)
    if (!c.grid[i] || !c.block[i])
      refuse(k, "CUDA_ERROR_INVALID_VALUE", "got grid " + dims(c.grid) + ", block " + dims(c.block) + "; no 0 allowed");
  if (c.grid[0] > 0x7fffffffu || c.grid[1] > 65535 || c.grid[2] > 65535)
    refuse(k, "CUDA_ERROR_INVALID_VALUE", "got grid " + dims(c.grid) + "; at most (2147483647, 65535, 65535)");
  u64 threads = static_cast<u64>(c.block[0]) * c.block[1] * c.block[2];
  if (c.block[0] > 1024 || c.block[1] > 1024 || c.block[2] > 64 || threads > device.max_threads_per_block)
    refuse(k, "CUDA_ERROR_INVALID_VALUE",
           "got block " + dims(c.block) + "; at most (1024, 1024, 64) and " +
               std::to_string(device.max_threads_per_block) + " threads");
  if (entry.reqntid[0])
    for (int i = 0; i < 3; ++i)
      if (c.block[i] != entry.reqntid[i])
        refuse(k, "CUDA_ERROR_INVALID_VALUE", "got block " + dims(c.block) + "; .reqntid is " + dims(entry.reqntid));
  if (entry.maxntid[0]) {
    u64 allowed = static_cast<u64>(entry.maxntid[0]) * entry.maxntid[1] * entry.maxntid[2];
    if (threads > allowed)
      refuse(k, "CUDA_ERROR_INVALID_VALUE",
             "got " + std::to_string(threads) + " threads; .maxntid allows " + std::to_string(allowed));
  }
  if (entry.static_smem > 49152)
    refuse(k, "CUDA_ERROR_INVALID_IMAGE",
           "declares " + std::to_string(entry.static_smem) + " B of static shared memory; 49152 B allowed");
  u64 smem = static_cast<u64>(entry.dynamic_smem_offset) + c.dynamic_smem_bytes;
  if (!c.dynamic_smem_bytes) smem = entry.static_smem;
  if (smem > device.smem_per_block)
    refuse(k, "CUDA_ERROR_INVALID_VALUE",
           "needs " + std::to_string(smem) + " B of shared memory (" + std::to_string(entry.static_smem) +
               " static); " + std::to_string(device.smem_per_block) + " B allowed" + on);
  if (param_size != entry.param_bytes)
    refuse(k, "CUDA_ERROR_INVALID_VALUE",
           "got " + std::to_string(param_size) + " B of parameters; it takes " + std::to_string(entry.param_bytes));
  u64 cluster = 1;
  for (int i = 0; i < 3; ++i) {
    u32 size = c.cluster[i] ? c.cluster[i] : 1;
    cluster *= size;
    if (c.grid[i] % size)
      refuse(k, "CUDA_ERROR_INVALID_CLUSTER_SIZE",
             "got cluster " + dims(c.cluster) + " for grid " + dims(c.grid) + "; it must divide the grid");
    if (entry.reqcluster[0] && size != entry.reqcluster[i])
      refuse(k, "CUDA_ERROR_INVALID_CLUSTER_SIZE",
             "got cluster " + dims(c.cluster) + "; .reqnctapercluster is " + dims(entry.reqcluster));
  }
  if (cluster > device.max_cluster)
    refuse(k, "CUDA_ERROR_INVALID_CLUSTER_SIZE",
           "got a cluster of " + std::to_string(cluster) + "; " + std::to_string(device.max_cluster) + " allowed" + on);
}

}  // namespace ptxsim
