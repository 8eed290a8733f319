// SPDX-License-Identifier: Apache-2.0
// Implements kernel_table.hpp.
#include "kernel_table.hpp"

#include <algorithm>
#include <climits>
#include <mutex>
#include <tuple>

#include "error.hpp"

namespace attnsmith {

Target Target::parse(std::string const& text) {
  std::string digits = text.rfind("sm_", 0) == 0 ? text.substr(3) : std::string();
  bool const is_exact = !digits.empty() && digits.back() == 'a';
  if (is_exact) digits.pop_back();
  bool const all_digits = std::all_of(digits.begin(), digits.end(), [](unsigned char c) { return c >= '0' && c <= '9'; });
  if (digits.size() < 2 || digits.size() > 4 || !all_digits) {
    fail("read a compile target", "'" + text + "'", "sm_80, sm_86, sm_89, sm_90, sm_90a", "Pass one of these.");
  }
  int const number = std::stoi(digits);
  return Target{number / 10, number % 10, is_exact};
}

std::string Target::str() const {
  return "sm_" + std::to_string(major * 10 + minor) + (is_exact ? "a" : "");
}

bool Target::runs_on(Target const& device) const {
  if (is_exact) return major == device.major && minor == device.minor;
  return major == device.major && minor <= device.minor;
}

char const* to_string(Source source) {
  switch (source) {
    case Source::kBuiltIn: return "built-in";
    case Source::kAot: return "AOT";
    case Source::kJit: return "JIT";
  }
  return "?";
}

KernelTable& KernelTable::instance() {
  static KernelTable* table = new KernelTable;  // never destroyed: a launch may come from a thread that outlives main
  return *table;
}

void KernelTable::add(std::unique_ptr<Kernel> kernel) {
  std::unique_lock lock(mutex_);
  auto& entries = by_key_[kernel->packed_key];
  Kernel const* added = kernel.get();
  auto is_same = [added](Kernel const* other) {
    return other->name == added->name && other->target.str() == added->target.str();
  };
  entries.erase(std::remove_if(entries.begin(), entries.end(), is_same), entries.end());
  entries.push_back(added);
  storage_.push_back(std::move(kernel));
}

Found KernelTable::find(uint64_t packed_key, DeviceLimits const& device, int64_t seqlen_q) const {
  std::shared_lock lock(mutex_);
  auto const entries = by_key_.find(packed_key);
  Found found;
  if (entries == by_key_.end()) return found;
  using Rank = std::tuple<int, int, int>;  // seqlen_q limit, distance of the target, priority
  Rank best_rank{INT_MAX, INT_MAX, INT_MAX};
  Rank fallback_rank = best_rank;
  for (Kernel const* kernel : entries->second) {
    if (!kernel->target.runs_on(device.target) || kernel->smem_bytes > device.max_smem_bytes) continue;
    int const limit = kernel->max_seqlen_q == 0 ? INT_MAX : kernel->max_seqlen_q;
    Rank const rank{kernel->is_pinned() ? 0 : limit, device.target.minor - kernel->target.minor, kernel->priority};
    if (kernel->is_pinned() || seqlen_q <= limit) {
      if (found.kernel == nullptr || rank < best_rank) found.kernel = kernel, best_rank = rank;
    } else if (found.fallback == nullptr || rank < fallback_rank) {
      found.fallback = kernel, fallback_rank = rank;
    }
  }
  return found;
}

std::vector<Kernel const*> KernelTable::all() const {
  std::shared_lock lock(mutex_);
  std::vector<Kernel const*> kernels;
  for (auto const& stored : storage_) {
    auto const entries = by_key_.find(stored->packed_key);
    if (entries == by_key_.end()) continue;
    auto const& live = entries->second;
    if (std::find(live.begin(), live.end(), stored.get()) != live.end()) kernels.push_back(stored.get());
  }
  return kernels;
}

void KernelTable::clear() {
  std::unique_lock lock(mutex_);
  by_key_.clear();
}

}  // namespace attnsmith
