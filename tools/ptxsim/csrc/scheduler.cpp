// SPDX-License-Identifier: Apache-2.0
// The scheduler: CTAs over host threads, warps of a CTA in slices, deadlock and budget reports, error collection.
// Each CTA is run by one host thread from begin to end.
#include <algorithm>
#include <chrono>
#include <thread>

#include "executor.hpp"
#include "race.hpp"

namespace ptxsim {
namespace {

constexpr u32 kQuantum = 512;        // instructions a warp runs before the next one gets its turn
constexpr i64 kBudgetChunk = 65536;  // steps a worker takes from the launch's budget at once

// One slice of one warp. Returns the number of instructions executed.
template <bool kStats>
u32 run_slice(Warp& w, const Inst* code, u32 quantum) {
  Worker& worker = *w.worker;
  u32 steps = 0;
  while (steps < quantum) {
    const Inst& i = code[w.pc];
    ++w.pc;
    ++steps;
    u32 mask = w.active;
    if (i.guard_mode) {
      u32 p = w.preds[i.guard];
      mask &= i.guard_mode == 1 ? p : ~p;
    }
    if (mask) {
      if constexpr (kStats) {
        ++worker.executed[i.index];
        worker.lanes[i.index] += static_cast<u64>(__builtin_popcount(mask));
      }
      i.fn(w, i, mask);
    } else if constexpr (kStats) {
      ++worker.executed[i.index];
    }
    if (__builtin_expect((i.flags & kControl) || w.pc == w.rpc, 0)) {
      if (w.state == WarpState::AtBarrier) return steps;
      pop_finished(w);
      if (w.state == WarpState::Done) return steps;
    }
  }
  return steps;
}

class CtaRunner {
 public:
  explicit CtaRunner(Worker* worker) : worker_(*worker), launch_(*worker->launch), entry_(*launch_.entry) {
    prepare_storage();
  }

  void run(u64 linear) {
    start(linear);
    try {
      schedule();
    } catch (SimError& error) {
      error.kernel = entry_.name;
      error.has_cta = true;
      std::copy(cta_.id, cta_.id + 3, error.cta);
      throw;
    }
    ++worker_.counters.ctas;
  }

 private:
  void prepare_storage() {
    cta_.warps.resize(launch_.num_warps);
    cta_.reg_storage.assign(static_cast<size_t>(entry_.reg_words) * launch_.num_warps + 16, 0);
    cta_.pred_storage.assign(static_cast<size_t>(entry_.num_preds) * launch_.num_warps, 0);
    cta_.local_storage.assign(static_cast<size_t>(entry_.local_bytes) * kLanes * launch_.num_warps, 0);
    u32* base = cta_.reg_storage.data();
    base += (64 - reinterpret_cast<uintptr_t>(base) % 64) % 64 / 4;
    for (u32 id = 0; id < launch_.num_warps; ++id) {
      Warp& w = cta_.warps[id];
      w.id = id, w.cta = &cta_, w.worker = &worker_;
      w.regs = base + static_cast<size_t>(id) * entry_.reg_words;
      w.preds = cta_.pred_storage.data() + static_cast<size_t>(id) * entry_.num_preds;
      w.local = cta_.local_storage.data() + static_cast<size_t>(id) * entry_.local_bytes * kLanes;
      fill_constants(w);
    }
  }

  static void fill(Warp& w, u32 slot, int width, u64 value) {
    for (int l = 0; l < kLanes; ++l)
      if (width == 32)
        w.r32(slot)[l] = static_cast<u32>(value);
      else
        w.r64(slot)[l] = value;
  }

  void fill_constants(Warp& w) {
    for (const ConstSlot& c : entry_.consts) {
      u64 value = c.value;
      if (c.kind == ConstSlot::ParamAddress) value += reinterpret_cast<u64>(launch_.params);
      if (c.kind == ConstSlot::DynamicShared) value += entry_.dynamic_smem_offset;
      fill(w, c.slot, c.width, value);
    }
    w.preds[kPredTrue] = kFullMask;
    w.preds[kPredFalse] = 0;
  }

  void start(u64 linear) {
    const auto& c = launch_.config;
    cta_.linear = linear;
    cta_.id[0] = static_cast<u32>(linear % c.grid[0]);
    cta_.id[1] = static_cast<u32>(linear / c.grid[0] % c.grid[1]);
    cta_.id[2] = static_cast<u32>(linear / c.grid[0] / c.grid[1]);
    u64 mix = launch_.config.seed * 0x2545f4914f6cdd1dull + linear;
    worker_.rng = splitmix64(mix);
    cta_.smem.resize(launch_.smem_bytes);
    // Contents of shared memory at start are undefined: fill with what no kernel should rely on.
    std::memset(cta_.smem.data(), 0xcd, cta_.smem.size());
    cta_.smem_state.assign(launch_.smem_bytes, kUnwritten);
    cta_.race_cells.resize(launch_.smem_bytes / 16 + 1);
    for (BarrierState& b : cta_.barriers) b = BarrierState();
    cta_.live_threads = launch_.threads;
    race_start(cta_);
    for (Warp& w : cta_.warps) start_warp(w);
  }

  void start_warp(Warp& w) {
    u32 first = w.id * kLanes;
    u32 count = std::min<u32>(kLanes, launch_.threads - first);
    w.alive = w.active = count == kLanes ? kFullMask : (1u << count) - 1;
    w.pc = 0, w.rpc = kNoPc, w.state = WarpState::Ready;
    w.stack.clear();
    w.copies.clear();
    std::memset(w.regs, 0, entry_.data_words * sizeof(u32));
    std::fill(w.preds + kPredCarry, w.preds + entry_.num_preds, 0u);
    std::memset(w.copy_group, 0, sizeof w.copy_group);
    for (const SpecialSlot& s : entry_.specials)
      for (int l = 0; l < kLanes; ++l) {
        u64 value = special_value(s.special, first + static_cast<u32>(l), w.id);
        if (s.width == 32)
          w.r32(s.slot)[l] = static_cast<u32>(value);
        else
          w.r64(s.slot)[l] = value;
      }
  }

  u64 special_value(Special s, u32 thread, u32 warp) const {
    const auto& c = launch_.config;
    const u32 lane = thread % kLanes;
    const u32 tid[3] = {thread % c.block[0], thread / c.block[0] % c.block[1], thread / c.block[0] / c.block[1]};
    auto index = [&](Special first) { return static_cast<int>(s) - static_cast<int>(first); };
    if (s <= Special::TidZ) return tid[index(Special::TidX)];
    if (s <= Special::NtidZ) return c.block[index(Special::NtidX)];
    if (s <= Special::CtaidZ) return cta_.id[index(Special::CtaidX)];
    if (s <= Special::NctaidZ) return c.grid[index(Special::NctaidX)];
    switch (s) {
      case Special::Laneid:
        return lane;
      case Special::Warpid:
        return warp;
      case Special::Nwarpid:
        return launch_.device->max_threads_per_sm / kLanes;
      case Special::Smid:
        return cta_.linear % launch_.device->sm_count;
      case Special::Nsmid:
        return launch_.device->sm_count;
      case Special::LanemaskEq:
        return 1u << lane;
      case Special::LanemaskLt:
        return (1u << lane) - 1;
      case Special::LanemaskLe:
        return (2u << lane) - 1;
      case Special::LanemaskGe:
        return ~((1u << lane) - 1);
      case Special::LanemaskGt:
        return ~((2u << lane) - 1);
      case Special::DynamicSmem:
        return c.dynamic_smem_bytes;
      case Special::TotalSmem:
        return launch_.smem_bytes;
      case Special::ClusterNctaidX:
      case Special::ClusterNctaidY:
      case Special::ClusterNctaidZ:
      case Special::ClusterNctarank:
        return 1;
      case Special::ClusteridX:
      case Special::ClusteridY:
      case Special::ClusteridZ:
        return cta_.id[index(Special::ClusteridX)];
      case Special::NclusteridX:
      case Special::NclusteridY:
      case Special::NclusteridZ:
        return c.grid[index(Special::NclusteridX)];
      default:
        return 0;
    }
  }

  // Random async mode: any committed or uncommitted copy may land at any time.
  void land_some_copies(Warp& w) {
    u32 limit[kLanes];
    for (int l = 0; l < kLanes; ++l) limit[l] = w.copy_group[l] + 1;
    complete_copies(w, worker_.random(), limit);
  }

  void take_budget(u32 steps) {
    chunk_ -= steps;
    if (chunk_ > 0) return;
    i64 wanted = kBudgetChunk - chunk_;
    i64 before = launch_.budget.fetch_sub(wanted);
    if (before < wanted) {
      i64 granted = std::max<i64>(before, 0);
      if (granted + chunk_ <= 0) out_of_budget();
      chunk_ += granted;
      launch_.budget = 0;
      return;
    }
    chunk_ += wanted;
  }

  [[noreturn]] void out_of_budget() {
    std::string report = describe_warps(cta_, entry_);
    SimError error("budget", "the launch used up its step budget of " + std::to_string(launch_.config.step_budget) +
                                 " warp instructions\n" + report);
    error.report = report;
    for (const Warp& w : cta_.warps)
      if (w.state == WarpState::Ready) {
        error.line = entry_.lines[w.pc], error.text = entry_.texts[w.pc];
        error.thread = static_cast<int>(w.id) * kLanes;
        break;
      }
    throw error;
  }

  bool turn(Warp& w) {
    if (w.state != WarpState::Ready) return false;
    u32 quantum = launch_.random_schedule ? 1 + worker_.random() % 48 : kQuantum;
    if (launch_.config.step_budget && chunk_ > 0) quantum = static_cast<u32>(std::min<i64>(quantum, chunk_));
    if (launch_.random_async && !w.copies.empty() && worker_.random() % 4 == 0) land_some_copies(w);
    const Inst* code = entry_.insts.data();
    u32 steps = 0;
    try {
      steps = launch_.stats ? run_slice<true>(w, code, quantum) : run_slice<false>(w, code, quantum);
    } catch (SimError& error) {
      if (!error.line) error.line = entry_.lines[w.pc - 1], error.text = entry_.texts[w.pc - 1];
      throw;
    }
    if (w.state == WarpState::Done) finished(w);
    take_budget(steps);
    return true;
  }

  // Threads that leave no longer count for barriers without an explicit thread count.
  void finished(Warp&) {
    for (BarrierState& b : cta_.barriers)
      if (b.warps && !b.counted) release_if_complete(cta_, b);
  }

  void schedule() {
    u32 n = launch_.num_warps;
    for (;;) {
      if (launch_.abort) throw SimError("abort", "another thread failed");
      bool moved = false, done = true;
      for (u32 k = 0; k < n; ++k) {
        Warp& w = cta_.warps[launch_.random_schedule ? worker_.random() % n : k];
        moved = turn(w) || moved;
      }
      for (Warp& w : cta_.warps) done = done && w.state == WarpState::Done;
      if (done) return;
      if (moved) continue;
      bool ready = false;
      for (Warp& w : cta_.warps) ready = ready || w.state == WarpState::Ready;
      if (!ready) deadlock();
    }
  }

  [[noreturn]] void deadlock() {
    std::string report = describe_warps(cta_, entry_);
    SimError error("deadlock", "no warp of the CTA can continue\n" + report);
    error.report = report;
    for (const Warp& w : cta_.warps)
      if (w.state == WarpState::AtBarrier) {
        u32 at = cta_.barriers[w.barrier].red_pc[w.id];
        error.line = entry_.lines[at], error.text = entry_.texts[at];
        error.thread = static_cast<int>(w.id) * kLanes;
        break;
      }
    throw error;
  }

  Worker& worker_;
  Launch& launch_;
  const Entry& entry_;
  Cta cta_;
  i64 chunk_ = 0;
};

void record_error(Launch& launch, const SimError& error, u64 cta) {
  std::lock_guard<std::mutex> hold(launch.error_lock);
  launch.abort = true;
  if (error.kind == "abort") return;
  if (!launch.error || cta < launch.error_cta) {
    launch.error = std::make_unique<SimError>(error);
    launch.error_cta = cta;
  }
}

void work(Worker* worker) {
  Launch& launch = *worker->launch;
  u64 cta = 0;
  try {
    CtaRunner runner(worker);
    while (!launch.abort && (cta = launch.next_cta++) < launch.num_ctas) runner.run(cta);
  } catch (const SimError& error) {
    record_error(launch, error, cta);
  } catch (const std::exception& error) {
    record_error(launch, SimError("launch", std::string("simulator failure: ") + error.what()), cta);
  }
}

void collect(const Launch& launch, const Worker& worker, Counters* total) {
  Counters c = worker.counters;
  for (size_t k = 0; k < worker.executed.size(); ++k) {
    const Inst& i = launch.entry->insts[k];
    c.warp_instructions += worker.executed[k];
    c.thread_instructions += worker.lanes[k];
    c.by_class[static_cast<int>(i.cls)] += worker.executed[k];
    if (i.cls == Cls::Mufu) c.mufu_ops += worker.lanes[k] * i.vec;
    if (i.flops) c.tensor_flops += worker.executed[k] * i.flops;
  }
  total->add(c);
}

}  // namespace

void run_launch(Launch* launch, Counters* total, double* seconds) {
  u64 threads = launch->config.num_threads ? launch->config.num_threads : std::thread::hardware_concurrency();
  threads = std::max<u64>(1, std::min<u64>(threads, launch->num_ctas));
  std::vector<Worker> workers(threads);
  for (Worker& worker : workers) {
    worker.launch = launch;
    worker.executed.assign(launch->entry->insts.size(), 0);
    worker.lanes.assign(launch->entry->insts.size(), 0);
  }
  auto begin = std::chrono::steady_clock::now();
  std::vector<std::thread> pool;
  for (size_t t = 1; t < threads; ++t) pool.emplace_back(work, &workers[t]);
  work(&workers[0]);
  for (std::thread& thread : pool) thread.join();
  *seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  if (launch->error) throw *launch->error;
  for (const Worker& worker : workers) collect(*launch, worker, total);
}

}  // namespace ptxsim
