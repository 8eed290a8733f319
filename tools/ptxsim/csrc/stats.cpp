// SPDX-License-Identifier: Apache-2.0
// Counting. A shared-memory access is processed in groups of lanes that touch at most 128 bytes (4-byte accesses: the
// warp, 8-byte: half-warps, 16-byte: quarter-warps); a group costs as many wavefronts as the busiest of 32 banks has
// distinct 4-byte words. One wavefront per group is the minimum, the rest are conflicts.
#include "stats.hpp"

#include <algorithm>

#include "error.hpp"

namespace ptxsim {
namespace {

constexpr const char* kClassNames[] = {
    "alu",        "fp",         "half",      "cvt",       "mov",       "mufu",     "fp64",     "mma",      "ldmatrix",
    "stmatrix",   "ld_global",  "st_global", "ld_shared", "st_shared", "ld_local", "st_local", "ld_param", "ld_const",
    "ld_generic", "st_generic", "atom",      "cp_async",  "bulk",      "wgmma",    "mbarrier",
    "warp",      "barrier",  "branch",   "fence",    "other",
};
constexpr const char* kPortNames[] = {"ld", "st", "ldmatrix", "stmatrix", "cp_async"};
constexpr int kBanks = 32;

// Accesses are aligned to their size, so a group's banks form 128/unit columns of one unit each.
u32 group_wavefronts(const u32* offsets, u32 mask, u32 unit, int first, int last) {
  u32 columns = 128 / unit, shift = static_cast<u32>(__builtin_ctz(unit));
  u32 held[kBanks], seen = 0;
  bool clash = false;
  for (int lane = first; lane < last; ++lane) {
    if (!(mask >> lane & 1)) continue;
    u32 id = offsets[lane] >> shift, column = id & (columns - 1);
    if (!(seen >> column & 1))
      seen |= 1u << column, held[column] = id;
    else
      clash = clash || held[column] != id;
  }
  if (!clash) return seen ? 1 : 0;
  u32 ids[kBanks][kLanes], used[kBanks] = {}, most = 0;
  for (int lane = first; lane < last; ++lane) {
    if (!(mask >> lane & 1)) continue;
    u32 id = offsets[lane] >> shift, column = id & (columns - 1);
    bool known = false;
    for (u32 k = 0; k < used[column] && !known; ++k) known = ids[column][k] == id;
    if (!known) ids[column][used[column]++] = id;
    most = std::max(most, used[column]);
  }
  return most;
}

std::string field(const char* key, u64 value) { return json_quote(key) + ":" + std::to_string(value); }

}  // namespace

const char* class_name(Cls cls) { return kClassNames[static_cast<int>(cls)]; }

void Counters::shared_access(SharedPort port, const u32* offsets, u32 mask, u32 bytes) {
  u32 unit = bytes < 4 ? 4 : bytes;
  int group = static_cast<int>(128 / unit);
  for (int first = 0; first < kLanes; first += group) {
    u32 wavefronts = group_wavefronts(offsets, mask, unit, first, first + group);
    shared_wavefronts[static_cast<int>(port)] += wavefronts;
    if (wavefronts > 1) shared_conflicts[static_cast<int>(port)] += wavefronts - 1;
  }
}

void Counters::global_access(bool write, const u64* addresses, u32 mask, u32 bytes) {
  u64 sectors[kLanes * 2];
  int n = 0;
  bool sorted = true;
  for (int lane = 0; lane < kLanes; ++lane) {
    if (!(mask >> lane & 1)) continue;
    for (u64 s = addresses[lane] / 32; s <= (addresses[lane] + bytes - 1) / 32; ++s) {
      if (n && sectors[n - 1] == s) continue;
      sorted = sorted && (!n || sectors[n - 1] < s);
      sectors[n++] = s;
    }
  }
  if (!sorted) {
    std::sort(sectors, sectors + n);
    n = static_cast<int>(std::unique(sectors, sectors + n) - sectors);
  }
  u64 total = static_cast<u64>(__builtin_popcount(mask)) * bytes;
  (write ? global_sectors_written : global_sectors_read) += static_cast<u64>(n);
  (write ? global_bytes_written : global_bytes_read) += total;
}

void Counters::add(const Counters& o) {
  warp_instructions += o.warp_instructions, thread_instructions += o.thread_instructions;
  for (int i = 0; i < static_cast<int>(Cls::kCount); ++i) by_class[i] += o.by_class[i];
  tensor_flops += o.tensor_flops, mufu_ops += o.mufu_ops;
  global_bytes_read += o.global_bytes_read, global_bytes_written += o.global_bytes_written;
  global_sectors_read += o.global_sectors_read, global_sectors_written += o.global_sectors_written;
  for (int i = 0; i < static_cast<int>(SharedPort::kCount); ++i)
    shared_wavefronts[i] += o.shared_wavefronts[i], shared_conflicts[i] += o.shared_conflicts[i];
  tma_bytes_read += o.tma_bytes_read, tma_bytes_written += o.tma_bytes_written;
  barrier_waits += o.barrier_waits, divergent_branches += o.divergent_branches, ctas += o.ctas;
}

std::string Counters::to_json(double seconds) const {
  std::string out = "{" + field("warp_instructions", warp_instructions);
  out += "," + field("thread_instructions", thread_instructions) + ",\"by_class\":{";
  for (int i = 0; i < static_cast<int>(Cls::kCount); ++i) out += (i ? "," : "") + field(kClassNames[i], by_class[i]);
  out += "}," + field("tensor_flops", tensor_flops) + "," + field("mufu_ops", mufu_ops);
  out +=
      "," + field("global_bytes_read", global_bytes_read) + "," + field("global_bytes_written", global_bytes_written);
  out += "," + field("global_sectors_read", global_sectors_read);
  out += "," + field("global_sectors_written", global_sectors_written);
  auto ports = [&](const char* key, const u64* values) {
    out += "," + json_quote(key) + ":{";
    for (int i = 0; i < static_cast<int>(SharedPort::kCount); ++i)
      out += (i ? "," : "") + field(kPortNames[i], values[i]);
    out += "}";
  };
  ports("shared_wavefronts", shared_wavefronts), ports("shared_conflicts", shared_conflicts);
  out += "," + field("tma_bytes_read", tma_bytes_read) + "," + field("tma_bytes_written", tma_bytes_written);
  out += "," + field("barrier_waits", barrier_waits) + "," + field("divergent_branches", divergent_branches);
  out += "," + field("ctas", ctas) + ",\"seconds\":" + std::to_string(seconds);
  return out + "}";
}

}  // namespace ptxsim
