// SPDX-License-Identifier: Apache-2.0
// The simulated device: launches a kernel's PTX through ptxsim, whose library is opened at run time. Not responsible
// for any GPU semantics: tools/ptxsim is.
#include <dlfcn.h>

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "device.hpp"
#include "error.hpp"
#include "ptxsim.h"

namespace attnsmith {

namespace {

// The entry points that the launcher needs, of one loaded simulator library.
struct Simulator {
  decltype(&ptxsim_load) load;
  decltype(&ptxsim_launch) launch;
  decltype(&ptxsim_encode_tensor_map) encode_tensor_map;
  decltype(&ptxsim_free) free;
};

template <typename Function>
void resolve(void* library, char const* symbol, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, symbol));
  if (function == nullptr) {
    fail("open the simulator", std::string("a library without ") + symbol, "a complete ptxsim library",
         "Run attnsmith clean, then try again.");
  }
}

Simulator const& simulator(std::string const& path) {
  static std::mutex mutex;
  static std::map<std::string, std::unique_ptr<Simulator>> libraries;
  std::lock_guard lock(mutex);
  auto& slot = libraries[path];
  if (slot == nullptr) {
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      char const* reason = dlerror();
      fail("open the simulator", reason ? reason : "an unknown error", "a ptxsim library built on this machine",
           "Run attnsmith clean, then try again.");
    }
    auto opened = std::make_unique<Simulator>();
    resolve(library, "ptxsim_load", opened->load);
    resolve(library, "ptxsim_launch", opened->launch);
    resolve(library, "ptxsim_encode_tensor_map", opened->encode_tensor_map);
    resolve(library, "ptxsim_free", opened->free);
    slot = std::move(opened);
  }
  return *slot;
}

thread_local SimOptions options;
thread_local std::string last_report;
thread_local std::string last_error;
thread_local TileCounter counter{};  // a launch returns when it has ended, so that a thread needs one

std::string take(Simulator const& simulator, char* text) {
  std::string copy = text != nullptr ? text : "";
  if (text != nullptr) simulator.free(text);
  return copy;
}

[[noreturn]] void throw_sim_error(Kernel const& kernel, std::string const& json) {
  last_error = json.empty() ? "{\"kind\": \"error\", \"message\": \"the simulator failed without a report\"}" : json;
  throw Error(kernel.name + " in the simulator: " + last_error);
}

ptxsim_module* load_module(Kernel const& kernel, Simulator const& simulator) {
  static std::mutex mutex;
  void* module = kernel.sim_module.load();
  if (module == nullptr) {
    std::lock_guard lock(mutex);
    module = kernel.sim_module.load();
    if (module == nullptr) {
      if (kernel.ptx.empty()) {
        fail("simulate " + kernel.name, "a kernel without PTX", "kernels that carry PTX",
             "Rebuild it with attnsmith build.");
      }
      char* error = nullptr;
      module = simulator.load(kernel.ptx.data(), kernel.ptx.size(), &error);
      std::string const report = take(simulator, error);
      if (module == nullptr) throw_sim_error(kernel, report);
      kernel.sim_module.store(module);
    }
  }
  return static_cast<ptxsim_module*>(module);
}

ptxsim_launch_config make_config(Kernel const& kernel, uint32_t grid) {
  ptxsim_launch_config config{};
  config.device = options.device.c_str();
  config.grid[0] = grid;
  config.grid[1] = config.grid[2] = 1;
  config.block[0] = kernel.num_threads;
  config.block[1] = config.block[2] = 1;
  config.cluster[0] = static_cast<uint32_t>(kernel.tile.cluster_size);
  config.cluster[1] = config.cluster[2] = 1;
  config.dynamic_smem_bytes = kernel.smem_bytes;
  config.num_threads = options.num_threads;
  config.seed = options.seed;
  config.schedule = options.schedule;
  config.async_mode = options.async_mode;
  config.step_budget = options.step_budget;
  config.check_flags = 3;
  config.collect_stats = 1;
  return config;
}

class SimDevice final : public Device {
 public:
  DeviceLimits limits() const override { return options.limits; }
  int index() const override { return -1; }

  void launch(Kernel const& kernel, Launch const& launch, void*) override {
    last_error.clear();
    Simulator const& sim = simulator(options.library);
    ptxsim_module* module = load_module(kernel, sim);
    std::vector<ptxsim_allocation> allocations;
    for (uint64_t i = 0; i < launch.num_allocations; ++i) {
      Allocation const& a = launch.allocations[i];
      if (a.bytes == 0) continue;
      allocations.push_back({reinterpret_cast<uint64_t>(a.base), a.bytes, a.name, a.is_writable ? 1 : 0, 0});
    }
    ptxsim_launch_config const config = make_config(kernel, launch.grid);
    char* stats = nullptr;
    char* error = nullptr;
    int const status = sim.launch(module, kernel.name.c_str(), &config, launch.params, launch.params_bytes,
                                  allocations.data(), allocations.size(), &stats, &error);
    std::string const stats_json = take(sim, stats);
    std::string const error_json = take(sim, error);
    TileCounter const left = std::exchange(counter, TileCounter{});
    if (status != 0) throw_sim_error(kernel, error_json);
    if (left.next_tile != 0 || left.num_finished_ctas != 0) {
      fail("launch " + kernel.name, "a tile counter of " + std::to_string(left.next_tile) + ", " +
           std::to_string(left.num_finished_ctas) + " after it", "0, 0: the kernel resets it",
           "This is a defect of the kernel: the next launch on the stream would compute nothing.");
    }
    last_report =
        "\"device\": \"" + options.device + "\", \"stats\": " + (stats_json.empty() ? "{}" : stats_json);
  }

  TmaDescriptor encode(TensorMap const& map) override {
    Simulator const& sim = simulator(options.library);
    TmaDescriptor descriptor{};
    uint32_t const element_strides[5] = {1, 1, 1, 1, 1};
    char* error = nullptr;
    int const status = sim.encode_tensor_map(&descriptor, static_cast<uint32_t>(map.type), map.rank,
                                             reinterpret_cast<uint64_t>(map.address), map.sizes, map.strides, map.box,
                                             element_strides, 0, swizzle_code(map.swizzle_bytes), kL2Promotion256B, 0,
                                             &error);
    std::string const report = take(sim, error);
    if (status != 0) throw Error("a tensor map in the simulator: " + (last_error = report));
    return descriptor;
  }

  TileCounter* tile_counter(void*) override { return &counter; }
};

}  // namespace

SimOptions& sim_options() { return options; }

Device& sim_device() {
  if (options.library.empty()) {
    fail("run a kernel on CPU tensors", "no simulated device in this thread", "a call inside attnsmith.simulate(...)",
         "Enter attnsmith.simulate(\"a100\") or set ATTNSMITH_SIMULATE.");
  }
  static SimDevice device;
  return device;
}

std::string const& last_sim_report() { return last_report; }

std::string take_sim_error() {
  std::string taken;
  taken.swap(last_error);
  return taken;
}

}  // namespace attnsmith
