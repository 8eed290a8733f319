// SPDX-License-Identifier: Apache-2.0
// Implements dispatch.hpp.
#include "dispatch.hpp"

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>
#include <shared_mutex>
#include <string>
#include <tuple>

#include "error.hpp"

namespace attnsmith {

namespace {

std::atomic<MissHandler> miss_handler{nullptr};

bool jit_enabled() {
  char const* text = std::getenv("ATTNSMITH_JIT");
  return text == nullptr || std::strcmp(text, "0") != 0;
}

std::string describe(FwdProblem const& problem) {
  return std::string("fwd ") + to_string(problem.dtype) + " head_dim " + std::to_string(problem.head_dim) +
         " head_dim_v " + std::to_string(problem.head_dim_v) + (problem.is_causal ? " causal" : " full");
}

ProblemKey base_key(FwdProblem const& problem, Arch arch, Mask mask) {
  HeadDimPair const head_dims = serving_head_dims(arch, problem.dtype, problem.head_dim, problem.head_dim_v);
  ProblemKey key{};
  key.head_dim = head_dims.head_dim;
  key.head_dim_v = head_dims.head_dim_v;
  key.op = Op::kFwd;
  key.arch = arch;
  key.dtype = problem.dtype;
  key.mask = mask;
  key.out_dtype = problem.out_dtype;
  return key;
}

// Every kernel of SM90 serves smaller head dims too.
void append_sm90_keys(FwdProblem const& problem, Mask mask, CandidateKeys& keys) {
  ProblemKey key = base_key(problem, Arch::kSm90, mask);
  key.v_is_col_major = problem.v_is_col_major;
  key.packs_gqa = problem.packs_gqa;
  keys.push_back(pack_key(key));
  if (!problem.packs_gqa || problem.is_packing_required) return;
  key.packs_gqa = false;
  keys.push_back(pack_key(key));
}

void append_sm80_keys(FwdProblem const& problem, Mask mask, CandidateKeys& keys) {
  ProblemKey key = base_key(problem, Arch::kSm80, mask);
  if (key.head_dim == problem.head_dim && key.head_dim_v == problem.head_dim_v) keys.push_back(pack_key(key));
  key.pads_head_dim = true;
  keys.push_back(pack_key(key));
}

// The first key's kernel; one that is pinned goes before every other.
Found search(CandidateKeys const& keys, FwdProblem const& problem, DeviceLimits const& device) {
  Found result;
  for (uint64_t key : keys) {
    Found const found = KernelTable::instance().find(key, device, problem.seqlen_q);
    if (found.kernel != nullptr && found.kernel->is_pinned()) return found;
    if (result.kernel == nullptr) result.kernel = found.kernel;
    if (result.fallback == nullptr) result.fallback = found.fallback;
  }
  return result;
}

// Runs the handler; its message, or "" when it has nothing to complain about.
std::string ask_handler(FwdProblem const& problem, DeviceLimits const& device, bool has_usable) {
  MissHandler const handler = miss_handler.load();
  if (handler == nullptr) return has_usable ? "" : "no handler builds missing kernels. Import attnsmith first.";
  char message[4096] = "";
  std::string const target = device.target.str();
  attnsmith_problem asked{};
  asked.dtype = static_cast<int>(problem.dtype);
  asked.out_dtype = static_cast<int>(problem.out_dtype);
  asked.head_dim = problem.head_dim;
  asked.head_dim_v = problem.head_dim_v;
  asked.is_causal = problem.is_causal && problem.seqlen_q != 1;
  asked.v_is_col_major = problem.v_is_col_major;
  asked.packs_gqa = problem.packs_gqa;
  asked.can_use_tma = problem.can_use_tma;
  asked.seqlen_q = problem.seqlen_q;
  asked.target = target.c_str();
  asked.has_usable = has_usable;
  int const status = handler(&asked, message, sizeof(message));
  message[sizeof(message) - 1] = '\0';
  if (status == 0) return "";
  return message[0] != '\0' ? message : "the handler failed without a message";
}

// Whether nothing better than `kernel` is worth a build: it is pinned, or of the best family and built ahead.
bool is_settled(Kernel const* kernel, CandidateKeys const& keys) {
  if (kernel == nullptr || kernel->is_pinned()) return kernel != nullptr;
  return kernel->source != Source::kJit && kernel->key.arch == unpack_key(keys.front()).arch;
}

// Problem classes that the handler was asked about: best key, target, and seqlen_q up to the next power of two, which
// is finer than any tile row's limit.
class AskedProblems {
 public:
  static AskedProblems& instance() {
    static AskedProblems* asked = new AskedProblems;
    return *asked;
  }

  static std::tuple<uint64_t, int, int> class_of(uint64_t key, FwdProblem const& problem, DeviceLimits const& device) {
    int bits = 0;
    for (int64_t rest = problem.seqlen_q - 1; rest > 0; rest >>= 1) ++bits;
    return {key, device.target.major * 100 + device.target.minor, bits};
  }

  bool contains(std::tuple<uint64_t, int, int> const& problem_class) const {
    std::shared_lock lock(mutex_);
    return classes_.count(problem_class) != 0;
  }

  void add(std::tuple<uint64_t, int, int> const& problem_class) {
    std::unique_lock lock(mutex_);
    classes_.insert(problem_class);
  }

  void clear() {
    std::unique_lock lock(mutex_);
    classes_.clear();
  }

 private:
  mutable std::shared_mutex mutex_;
  std::set<std::tuple<uint64_t, int, int>> classes_;
};

}  // namespace

CandidateKeys candidate_keys(FwdProblem const& problem, DeviceLimits const& device) {
  CandidateKeys keys;
  auto append = [&](auto append_family) {
    if (!problem.is_causal || problem.seqlen_q == 1) append_family(problem, Mask::kFull, keys);
    if (problem.is_causal) append_family(problem, Mask::kCausal, keys);
  };
  if (device.runs_sm90() && problem.can_use_tma) append(append_sm90_keys);
  if (!is_fp8(problem.dtype)) append(append_sm80_keys);
  return keys;
}

void set_miss_handler(MissHandler handler) { miss_handler.store(handler); }

void forget_asked_problems() { AskedProblems::instance().clear(); }

Kernel const& select_kernel(FwdProblem const& problem, DeviceLimits const& device) {
  CandidateKeys const keys = candidate_keys(problem, device);
  Found found = search(keys, problem, device);
  Kernel const* usable = found.kernel != nullptr ? found.kernel : found.fallback;
  if (is_settled(found.kernel, keys) || (usable != nullptr && !jit_enabled())) return *usable;
  auto const problem_class = AskedProblems::class_of(keys.front(), problem, device);
  if (usable != nullptr && AskedProblems::instance().contains(problem_class)) return *usable;
  std::string const message = ask_handler(problem, device, usable != nullptr);
  if (!message.empty()) throw Error(message);
  AskedProblems::instance().add(problem_class);
  found = search(keys, problem, device);
  if (found.kernel != nullptr) return *found.kernel;
  if (found.fallback != nullptr) return *found.fallback;
  fail("dispatch " + describe(problem) + " on " + device.target.str(), "no kernel after the miss handler had run",
       "a kernel of one of the problem's keys", "This is a defect of attnsmith: report it with attnsmith doctor's output.");
}

}  // namespace attnsmith
