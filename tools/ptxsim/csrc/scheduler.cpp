// SPDX-License-Identifier: Apache-2.0
// The scheduler: CTAs over host threads, warps of a CTA in slices, deadlock and budget reports, error collection.
// Each CTA, or cluster of them, is run by one host thread from begin to end.
#include <algorithm>
#include <chrono>
#include <thread>

#include "async.hpp"
#include "executor.hpp"
#include "race.hpp"

namespace ptxsim {
namespace {

constexpr u32 kQuantum = 512;        // instructions a warp runs before the next one gets its turn
constexpr u32 kIdleRounds = 100000;  // of warps that only poll, before it is a deadlock
constexpr i64 kBudgetChunk = 65536;  // steps a worker takes from the launch's budget at once

// One slice of one warp. Returns the number of instructions executed.
template <bool kStats, bool kMatrix>
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
      if constexpr (kMatrix) check_touches(w, i);
      i.fn(w, i, mask);
    } else if constexpr (kStats) {
      ++worker.executed[i.index];
    }
    if (__builtin_expect((i.flags & kControl) || w.pc == w.rpc, 0)) {
      if (w.state != WarpState::Ready) return steps;
      pop_finished(w);
      if (w.state == WarpState::Done || w.yields) return steps;
    }
  }
  return steps;
}

// Runs the CTAs of one cluster, a single one without clusters, from begin to end.
class ClusterRunner {
 public:
  explicit ClusterRunner(Worker* worker) : worker_(*worker), launch_(*worker->launch), entry_(*launch_.entry) {
    cluster_.ctas.resize(launch_.cluster_ctas);
    for (Cta& cta : cluster_.ctas) prepare_storage(cta);
    for (Cta& cta : cluster_.ctas)
      for (Warp& w : cta.warps) warps_.push_back(&w);
  }

  void run(u64 linear) {
    cluster_.loads.clear();
    cluster_.arrived = 0, cluster_.barrier_phase = 0;
    u64 mix = launch_.config.seed * 0x2545f4914f6cdd1dull + linear;
    worker_.rng = splitmix64(mix);
    for (u32 rank = 0; rank < cluster_.ctas.size(); ++rank) start(cluster_.ctas[rank], linear, rank);
    try {
      schedule();
      while (!cluster_.loads.empty()) land_bulk_load(cluster_, cluster_.loads.size() - 1);
    } catch (SimError& error) {
      error.kernel = entry_.name;
      if (!error.has_cta) std::copy(cluster_.ctas[0].id, cluster_.ctas[0].id + 3, error.cta);
      error.has_cta = true;
      throw;
    }
    worker_.counters.ctas += cluster_.ctas.size();
  }

 private:
  void prepare_storage(Cta& cta) {
    cta.cluster = &cluster_;
    cta.warps.resize(launch_.num_warps);
    cta.reg_storage.assign(static_cast<size_t>(entry_.reg_words) * launch_.num_warps + 16, 0);
    cta.pred_storage.assign(static_cast<size_t>(entry_.num_preds) * launch_.num_warps, 0);
    cta.local_storage.assign(static_cast<size_t>(entry_.local_bytes) * kLanes * launch_.num_warps, 0);
    u32* base = cta.reg_storage.data();
    base += (64 - reinterpret_cast<uintptr_t>(base) % 64) % 64 / 4;
    for (u32 id = 0; id < launch_.num_warps; ++id) {
      Warp& w = cta.warps[id];
      w.id = id, w.cta = &cta, w.worker = &worker_;
      w.regs = base + static_cast<size_t>(id) * entry_.reg_words;
      w.preds = cta.pred_storage.data() + static_cast<size_t>(id) * entry_.num_preds;
      w.local = cta.local_storage.data() + static_cast<size_t>(id) * entry_.local_bytes * kLanes;
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

  void start(Cta& cta, u64 linear, u32 rank) {
    const auto& c = launch_.config;
    const u32* size = launch_.cluster;
    u64 clusters_x = c.grid[0] / size[0], clusters_y = c.grid[1] / size[1];
    cta.rank = rank, cta.exited = false;
    cta.id[0] = static_cast<u32>(linear % clusters_x) * size[0] + rank % size[0];
    cta.id[1] = static_cast<u32>(linear / clusters_x % clusters_y) * size[1] + rank / size[0] % size[1];
    cta.id[2] = static_cast<u32>(linear / clusters_x / clusters_y) * size[2] + rank / size[0] / size[1];
    cta.linear = cta.id[0] + static_cast<u64>(c.grid[0]) * (cta.id[1] + static_cast<u64>(c.grid[1]) * cta.id[2]);
    cta.smem.resize(launch_.smem_bytes);
    // Contents of shared memory at start are undefined: fill with what no kernel should rely on.
    std::memset(cta.smem.data(), 0xcd, cta.smem.size());
    cta.smem_state.assign(launch_.smem_bytes, kUnwritten);
    cta.race_cells.resize(launch_.smem_bytes / 16 + 1);
    for (BarrierState& b : cta.barriers) b = BarrierState();
    cta.mbarriers.clear();
    cta.register_pool = 0;
    std::fill(cta.cluster_times, cta.cluster_times + kLanes, 0u);
    std::fill(cta.cluster_fenced, cta.cluster_fenced + kLanes, 0u);
    if (!entry_.matrix_index.empty()) cta.warpgroups.assign(launch_.num_warps / kWarpgroupWarps, Warpgroup());
    cta.live_threads = launch_.threads;
    race_start(cta);
    for (Warp& w : cta.warps) start_warp(w);
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
    std::memset(w.store_group, 0, sizeof w.store_group);
    w.stores.clear(), w.matrix_ops.clear(), w.matrix_groups.clear();
    w.matrix_issued = w.matrix_done = 0, w.fence_epoch = 0;
    w.cluster_arrived = w.yields = w.spins = false;
    w.registers = entry_registers(launch_);
    if (!entry_.matrix_index.empty()) {
      w.register_lock.assign(entry_.data_words / kLanes + 1, 0);
      w.register_epoch.assign(entry_.data_words / kLanes + 1, 0);
    }
    for (const SpecialSlot& s : entry_.specials)
      for (int l = 0; l < kLanes; ++l) {
        u64 value = special_value(s.special, first + static_cast<u32>(l), w);
        if (s.width == 32)
          w.r32(s.slot)[l] = static_cast<u32>(value);
        else
          w.r64(s.slot)[l] = value;
      }
  }

  u64 special_value(Special s, u32 thread, const Warp& w) const {
    const Cta& cta = *w.cta;
    const auto& c = launch_.config;
    const u32 lane = thread % kLanes;
    const u32 tid[3] = {thread % c.block[0], thread / c.block[0] % c.block[1], thread / c.block[0] / c.block[1]};
    auto index = [&](Special first) { return static_cast<int>(s) - static_cast<int>(first); };
    if (s <= Special::TidZ) return tid[index(Special::TidX)];
    if (s <= Special::NtidZ) return c.block[index(Special::NtidX)];
    if (s <= Special::CtaidZ) return cta.id[index(Special::CtaidX)];
    if (s <= Special::NctaidZ) return c.grid[index(Special::NctaidX)];
    switch (s) {
      case Special::Laneid:
        return lane;
      case Special::Warpid:
        return w.id;
      case Special::Nwarpid:
        return launch_.device->max_threads_per_sm / kLanes;
      case Special::Smid:
        return cta.linear % launch_.device->sm_count;
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
      case Special::ClusterNctarank:
        return cluster_.ctas.size();
      case Special::ClusterCtarank:
        return cta.rank;
      case Special::IsExplicitCluster:
        return cluster_.ctas.size() > 1 || entry_.reqcluster[0];
      case Special::ClusterCtaidX:
      case Special::ClusterCtaidY:
      case Special::ClusterCtaidZ:
        return cta.id[index(Special::ClusterCtaidX)] % launch_.cluster[index(Special::ClusterCtaidX)];
      case Special::ClusterNctaidX:
      case Special::ClusterNctaidY:
      case Special::ClusterNctaidZ:
        return launch_.cluster[index(Special::ClusterNctaidX)];
      case Special::ClusteridX:
      case Special::ClusteridY:
      case Special::ClusteridZ:
        return cta.id[index(Special::ClusteridX)] / launch_.cluster[index(Special::ClusteridX)];
      case Special::NclusteridX:
      case Special::NclusteridY:
      case Special::NclusteridZ:
        return c.grid[index(Special::NclusteridX)] / launch_.cluster[index(Special::NclusteridX)];
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

  std::string describe() const {
    std::string out;
    for (const Cta& cta : cluster_.ctas) {
      if (cluster_.ctas.size() > 1) out += " CTA rank " + std::to_string(cta.rank) + ":\n";
      out += describe_warps(cta, entry_);
    }
    return out;
  }

  void name_cta(SimError& error, const Warp& w) const {
    if (!error.has_cta) std::copy(w.cta->id, w.cta->id + 3, error.cta);
    error.has_cta = true;
  }

  [[noreturn]] void out_of_budget() {
    std::string report = describe();
    SimError error("budget", "the launch used up its step budget of " + std::to_string(launch_.config.step_budget) +
                                 " warp instructions\n" + report);
    error.report = report;
    for (const Warp* w : warps_)
      if (w->state == WarpState::Ready) {
        error.line = entry_.lines[w->pc], error.text = entry_.texts[w->pc];
        error.thread = static_cast<int>(w->id) * kLanes;
        name_cta(error, *w);
        break;
      }
    throw error;
  }

  // Random async mode: a bulk copy may land, and a wgmma that the whole warpgroup has issued may happen, at any time.
  void advance_some(Warp& w) {
    if (!w.copies.empty() && worker_.random() % 4 == 0) land_some_copies(w);
    if (!cluster_.loads.empty() && worker_.random() % 4 == 0)
      land_bulk_load(cluster_, worker_.random() % cluster_.loads.size());
    if (!w.matrix_ops.empty() && worker_.random() % 4 == 0) {
      Warpgroup& group = w.cta->warpgroups[w.id / kWarpgroupWarps];
      if (!group.ops.empty() && group.ops.front().joined == 0xf) run_matrix_ops(w, group, group.first + 1);
    }
  }

  u32 slice(Warp& w, u32 quantum) {
    const Inst* code = entry_.insts.data();
    if (!entry_.matrix_index.empty())
      return launch_.stats ? run_slice<true, true>(w, code, quantum) : run_slice<false, true>(w, code, quantum);
    return launch_.stats ? run_slice<true, false>(w, code, quantum) : run_slice<false, false>(w, code, quantum);
  }

  // True if the warp did something other than polling in vain.
  bool turn(Warp& w) {
    if (w.state != WarpState::Ready) return false;
    u32 quantum = launch_.random_schedule ? 1 + worker_.random() % 48 : kQuantum;
    if (launch_.config.step_budget && chunk_ > 0) quantum = static_cast<u32>(std::min<i64>(quantum, chunk_));
    u32 steps = 0;
    try {
      if (launch_.random_async) advance_some(w);
      w.yields = false;
      steps = slice(w, quantum);
      w.spins = w.yields;
      if (w.state == WarpState::Done) finished(w);
    } catch (SimError& error) {
      if (!error.line) error.line = entry_.lines[w.pc - 1], error.text = entry_.texts[w.pc - 1];
      name_cta(error, w);
      throw;
    }
    take_budget(steps);
    return !w.spins;
  }

  // Threads that leave no longer count for barriers without an explicit thread count.
  void finished(Warp& w) {
    finish_matrix_ops(w);
    finish_stores(w);
    Cta& cta = *w.cta;
    for (BarrierState& b : cta.barriers)
      if (b.warps && !b.counted) release_if_complete(cta, b);
    if (cluster_.ctas.size() == 1) return release_cluster_if_complete(cluster_);
    bool all = true;
    for (Warp& other : cta.warps) all = all && other.state == WarpState::Done;
    cta.exited = all;
    release_cluster_if_complete(cluster_);
  }

  void schedule() {
    u32 n = static_cast<u32>(warps_.size()), idle = 0;
    for (;;) {
      if (launch_.abort) throw SimError("abort", "another thread failed");
      bool moved = false, done = true;
      for (u32 k = 0; k < n; ++k) {
        Warp& w = *warps_[launch_.random_schedule ? worker_.random() % n : k];
        moved = turn(w) || moved;
      }
      for (Warp* w : warps_) done = done && w->state == WarpState::Done;
      if (done) return;
      if (moved) {
        idle = 0;
        continue;
      }
      bool ready = false, works = false;
      for (Warp* w : warps_) {
        ready = ready || w->state == WarpState::Ready;
        works = works || (w->state == WarpState::Ready && !w->spins);
      }
      if (works) continue;  // a random schedule did not pick it
      if (!cluster_.loads.empty()) {
        land_bulk_load(cluster_, cluster_.loads.size() - 1);
        continue;
      }
      if (!ready || ++idle > kIdleRounds) deadlock();
    }
  }

  [[noreturn]] void deadlock() {
    std::string report = describe();
    SimError error("deadlock", std::string("no warp of the ") + (cluster_.ctas.size() > 1 ? "cluster" : "CTA") +
                                   " can continue\n" + report);
    error.report = report;
    for (const Warp* w : warps_) {
      if (w->state == WarpState::Done) continue;
      u32 at = w->state == WarpState::AtBarrier ? w->cta->barriers[w->barrier].red_pc[w->id]
               : w->state == WarpState::AtMbarrier || w->state == WarpState::AtCluster ? w->wait_pc : w->pc;
      error.line = entry_.lines[at], error.text = entry_.texts[at];
      error.thread = static_cast<int>(w->id) * kLanes;
      name_cta(error, *w);
      break;
    }
    throw error;
  }

  Worker& worker_;
  Launch& launch_;
  const Entry& entry_;
  Cluster cluster_;
  std::vector<Warp*> warps_;
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
    ClusterRunner runner(worker);
    while (!launch.abort && (cta = launch.next_cta++) < launch.num_ctas / launch.cluster_ctas) runner.run(cta);
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
  threads = std::max<u64>(1, std::min<u64>(threads, launch->num_ctas / launch->cluster_ctas));
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
