// SPDX-License-Identifier: Apache-2.0
// The table of kernels that this process can launch: images with their metadata, found by packed key and target. Not
// responsible for which keys serve a problem (dispatch.hpp) or for launching (device.hpp).
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <shared_mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "dispatch_table.inc"  // rendered by attnsmith.codegen.dispatch

namespace attnsmith {

inline constexpr int kMaxDevices = 64;  // CUDA devices per process that the function cache has slots for

// A compile target ("sm_80", "sm_90a") or what a device asks for.
struct Target {
  int major = 0;
  int minor = 0;
  bool is_exact = false;  // an 'a' target runs on its own compute capability only

  static Target parse(std::string const& text);
  std::string str() const;
  // Whether code of this target runs on a device of compute capability `device`: same major, no newer minor.
  bool runs_on(Target const& device) const;
};

enum class Source : int { kBuiltIn = 0, kAot = 1, kJit = 2 };

char const* to_string(Source source);

// How a kernel's CTAs come by their output tiles: the codes of attnsmith_kernel_desc.
enum class Scheduler : int { kSingle = 0, kStatic = 1, kDynamic = 2 };

struct TileShape {
  int block_m = 0;
  int block_n = 0;
  int num_warps = 0;
  int num_stages = 0;
  Scheduler scheduler = Scheduler::kSingle;
  int cluster_size = 1;
  int ctas_per_sm = 1;  // resident at once

  bool is_persistent() const { return scheduler != Scheduler::kSingle; }
};

// One kernel. Immutable once registered, but for the per-device handles that the devices keep in it.
struct Kernel {
  std::string name;
  uint64_t packed_key = 0;
  ProblemKey key{};  // packed_key's fields
  Target target;
  TileShape tile;
  uint32_t smem_bytes = 0;
  uint32_t num_threads = 0;
  int priority = 0;
  int max_seqlen_q = 0;  // 0: no limit
  Source source = Source::kJit;
  std::string cubin;
  std::string ptx;

  bool is_pinned() const { return priority < 0; }  // chosen by the user for every length

  mutable std::array<std::atomic<void*>, kMaxDevices> cuda_functions{};  // CUfunction by device index
  mutable std::atomic<void*> sim_module{nullptr};                        // ptxsim_module*
};

// What a device can run.
struct DeviceLimits {
  Target target;
  uint32_t max_smem_bytes = 0;
  int num_sms = 1;

  // The SM90 family is compiled for sm_90a, which is exact.
  bool runs_sm90() const { return target.major == 9 && target.minor == 0; }
};

// Result of a search: `kernel` meets its seqlen_q condition; `fallback` computes the right result but was meant for
// shorter sequences. Either may be null.
struct Found {
  Kernel const* kernel = nullptr;
  Kernel const* fallback = nullptr;
};

class KernelTable {
 public:
  static KernelTable& instance();

  // Adds a kernel; one of the same name and target is replaced in the search order, and stays valid in memory.
  void add(std::unique_ptr<Kernel> kernel);

  // The best kernel of `packed_key` for a device. Order: pinned kernels; then the tightest seqlen_q limit that holds,
  // then no limit; within those the target nearest to the device, then priority.
  Found find(uint64_t packed_key, DeviceLimits const& device, int64_t seqlen_q) const;

  std::vector<Kernel const*> all() const;

  // Empties the search order (images stay in memory). For tests.
  void clear();

 private:
  mutable std::shared_mutex mutex_;
  std::vector<std::unique_ptr<Kernel>> storage_;
  std::unordered_map<uint64_t, std::vector<Kernel const*>> by_key_;
};

}  // namespace attnsmith
