// SPDX-License-Identifier: Apache-2.0
// The C ABI: strings in, strings out, no exception crosses it.
#include <algorithm>
#include <cstdlib>

#include "ptxsim.h"
#include "runtime.hpp"

struct ptxsim_module {
  std::unique_ptr<ptxsim::Module> module;
};

namespace ptxsim {
namespace {

char* copy_out(const std::string& text) {
  char* out = static_cast<char*>(std::malloc(text.size() + 1));
  if (out) std::memcpy(out, text.c_str(), text.size() + 1);
  return out;
}

template <class F>
bool guarded(char** error_json, F f) {
  try {
    f();
    return true;
  } catch (const SimError& error) {
    if (error_json) *error_json = copy_out(error.to_json());
  } catch (const std::exception& error) {
    if (error_json)
      *error_json = copy_out(SimError("launch", std::string("simulator failure: ") + error.what()).to_json());
  }
  return false;
}

ptxsim_module* load(const char* ptx, size_t size, bool collect, char** error_json) {
  if (error_json) *error_json = nullptr;
  ptxsim_module* out = nullptr;
  guarded(error_json, [&] {
    auto module = load_module(std::string(ptx, size), collect);
    out = new ptxsim_module{std::move(module)};
  });
  return out;
}

std::string dims_json(const u32* d) {
  return "[" + std::to_string(d[0]) + "," + std::to_string(d[1]) + "," + std::to_string(d[2]) + "]";
}

std::string entry_json(const Entry& e) {
  std::string out = "{\"name\":" + json_quote(e.name) + ",\"params\":[";
  for (size_t k = 0; k < e.params.size(); ++k) {
    const Param& p = e.params[k];
    out += (k ? "," : "") + std::string("{\"name\":") + json_quote(p.name) + ",\"size\":" + std::to_string(p.bytes) +
           ",\"align\":" + std::to_string(p.align) + ",\"offset\":" + std::to_string(p.offset) + "}";
  }
  out += "],\"param_bytes\":" + std::to_string(e.param_bytes) + ",\"static_smem\":" + std::to_string(e.static_smem);
  out += ",\"local_bytes\":" + std::to_string(e.local_bytes);
  out += ",\"reqntid\":" + (e.reqntid[0] ? dims_json(e.reqntid) : "null");
  out += ",\"maxntid\":" + (e.maxntid[0] ? dims_json(e.maxntid) : "null") + ",\"registers\":{";
  for (size_t k = 0; k < e.register_counts.size(); ++k)
    out += (k ? "," : "") + json_quote(e.register_counts[k].first) + ":" + std::to_string(e.register_counts[k].second);
  return out + "},\"instructions\":" + std::to_string(e.insts.size() - 1) + "}";
}

std::string describe(const Module& m) {
  std::string out = "{\"version\":" + json_quote(m.version) + ",\"target\":" + json_quote(m.target) + ",\"entries\":[";
  std::string missing;
  for (size_t k = 0; k < m.entries.size(); ++k) {
    out += (k ? "," : "") + entry_json(m.entries[k]);
    for (const Unsupported& u : m.entries[k].unsupported)
      missing += (missing.empty() ? "" : ",") + std::string("{\"line\":") + std::to_string(u.line) +
                 ",\"text\":" + json_quote(u.text) + ",\"reason\":" + json_quote(u.reason) +
                 ",\"entry\":" + json_quote(m.entries[k].name) + "}";
  }
  return out + "],\"unsupported\":[" + missing + "]}";
}

// Ends a kernel that spins forever within minutes; the largest forward problems take a twentieth of it.
constexpr u64 kDefaultBudget = 20'000'000'000ull;

const Entry& find_entry(const Module& m, const char* kernel) {
  std::string names;
  for (const Entry& e : m.entries) {
    if (e.name == kernel) return e;
    names += (names.empty() ? "" : ", ") + e.name;
  }
  throw SimError("launch", "CUDA_ERROR_NOT_FOUND: no kernel '" + std::string(kernel) +
                               "' in the module; it has: " + (names.empty() ? "none" : names));
}

void launch(const Module& m, const char* kernel, const ptxsim_launch_config& config, const void* params,
            size_t param_size, const ptxsim_allocation* allocations, size_t num_allocations, char** stats_json) {
  const Entry& entry = find_entry(m, kernel);
  const Device* device = find_device(config.device ? config.device : "a100");
  if (!device)
    throw SimError("launch", "CUDA_ERROR_INVALID_DEVICE: no device '" + std::string(config.device) +
                                 "'; known: " + device_names());
  if (!entry.unsupported.empty()) {
    const Unsupported& u = entry.unsupported[0];
    throw SimError("unsupported",
                   "kernel " + entry.name + ", PTX line " + std::to_string(u.line) + ": " + u.reason +
                       " is not implemented: " + u.text,
                   u.line, u.text);
  }
  validate_launch(m, entry, *device, config, param_size);
  Launch run;
  run.module = &m, run.entry = &entry, run.config = config, run.device = device;
  run.param_storage.assign(entry.param_bytes + 128, 0);
  run.params = run.param_storage.data();
  run.params += (128 - reinterpret_cast<uintptr_t>(run.params) % 128) % 128;
  if (param_size) std::memcpy(run.params, params, param_size);
  for (size_t k = 0; k < num_allocations; ++k)
    run.allocations.push_back({allocations[k].base, allocations[k].bytes,
                               allocations[k].name ? allocations[k].name : "allocation " + std::to_string(k),
                               allocations[k].writable != 0});
  for (const GlobalVariable& g : m.globals)
    run.allocations.push_back({reinterpret_cast<u64>(g.data), g.bytes, g.name, g.writable});
  run.allocations.push_back({reinterpret_cast<u64>(run.params), entry.param_bytes, "kernel parameters", false, true});
  std::stable_sort(run.allocations.begin(), run.allocations.end(),
                   [](const Allocation& a, const Allocation& b) { return a.base < b.base; });
  run.threads = config.block[0] * config.block[1] * config.block[2];
  run.num_warps = (run.threads + kLanes - 1) / kLanes;
  run.smem_bytes =
      config.dynamic_smem_bytes ? entry.dynamic_smem_offset + config.dynamic_smem_bytes : entry.static_smem;
  run.num_ctas = static_cast<u64>(config.grid[0]) * config.grid[1] * config.grid[2];
  for (int k = 0; k < 3; ++k) {
    run.cluster[k] = config.cluster[k] ? config.cluster[k] : 1;
    run.cluster_ctas *= run.cluster[k];
  }
  run.check_bounds = config.check_flags & 1, run.check_init = config.check_flags & 2;
  run.check_races = !(config.check_flags & 4), run.check_proxy = !(config.check_flags & 8);
  run.random_schedule = config.schedule == 1, run.random_async = config.async_mode == 1;
  run.stats = config.collect_stats != 0;
  if (!run.config.step_budget) run.config.step_budget = kDefaultBudget;
  run.budget = static_cast<i64>(run.config.step_budget);
  Counters counters;
  double seconds = 0;
  run_launch(&run, &counters, &seconds);
  if (stats_json) *stats_json = copy_out(counters.to_json(seconds));
}

}  // namespace
}  // namespace ptxsim

extern "C" {

ptxsim_module* ptxsim_load(const char* ptx, size_t size, char** error_json) {
  return ptxsim::load(ptx, size, false, error_json);
}

ptxsim_module* ptxsim_parse(const char* ptx, size_t size, char** error_json) {
  return ptxsim::load(ptx, size, true, error_json);
}

void ptxsim_unload(ptxsim_module* module) { delete module; }

char* ptxsim_describe(const ptxsim_module* module) { return ptxsim::copy_out(ptxsim::describe(*module->module)); }

int ptxsim_launch(ptxsim_module* module, const char* kernel, const ptxsim_launch_config* config,
                  const void* param_bytes, size_t param_size, const ptxsim_allocation* allocations,
                  size_t num_allocations, char** stats_json, char** error_json) {
  if (stats_json) *stats_json = nullptr;
  if (error_json) *error_json = nullptr;
  bool ok = ptxsim::guarded(error_json, [&] {
    ptxsim::launch(*module->module, kernel, *config, param_bytes, param_size, allocations, num_allocations, stats_json);
  });
  return ok ? 0 : 1;
}

char* ptxsim_devices(void) { return ptxsim::copy_out(ptxsim::devices_json()); }

void ptxsim_free(char* text) { std::free(text); }
}
