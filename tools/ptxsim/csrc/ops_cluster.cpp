// SPDX-License-Identifier: Apache-2.0
// Clusters and register reallocation: mapa, getctarank, barrier.cluster, setmaxnreg. A CTA's pool of registers is what
// it got at launch; setmaxnreg.inc waits until other warps have given enough back.
#include "async.hpp"
#include "executor.hpp"
#include "lanes.hpp"
#include "memory.hpp"
#include "ops_shared.hpp"
#include "race.hpp"

namespace ptxsim {

void wake(Warp& w) {
  w.state = WarpState::Ready;
  pop_finished(w);
}

void suspend_and_retry(Warp& w, const Inst& i, u32 mask, WarpState state) {
  w.pc = i.index, w.wait_pc = i.index, w.state = state;
  if (!w.worker->launch->stats) return;
  --w.worker->executed[i.index];
  w.worker->lanes[i.index] -= static_cast<u64>(__builtin_popcount(mask));
}

SharedPlace cluster_place(Warp& w, const Inst& i, int lane, u64 address) {
  if (address < 1u << kClusterShift) return {w.cta, static_cast<u32>(address)};
  u64 rank = (address >> kClusterShift) - 1;
  Cluster& cluster = *w.cta->cluster;
  if (rank >= cluster.ctas.size())
    throw_lane_error(w, i, lane, "memory", address,
                     "shared::cluster address " + hex(address) + " names CTA rank " + std::to_string(rank) +
                         " of a cluster of " + std::to_string(cluster.ctas.size()));
  Cta& cta = cluster.ctas[rank];
  if (cta.exited)
    throw_lane_error(w, i, lane, "race", address,
                     "the CTA of rank " + std::to_string(rank) + ", whose shared memory is used, has exited");
  return {&cta, static_cast<u32>(address) & ((1u << kClusterShift) - 1)};
}

u32 entry_registers(const Launch& launch) {
  const Entry& entry = *launch.entry;
  if (entry.maxnreg) return entry.maxnreg;
  u32 threads = entry.reqntid[0] ? entry.reqntid[0] * entry.reqntid[1] * entry.reqntid[2]
                : entry.maxntid[0] ? entry.maxntid[0] * entry.maxntid[1] * entry.maxntid[2]
                                   : launch.threads;
  u32 ctas = std::max(1u, entry.minnctapersm);
  return std::min(255u, launch.device->registers_per_sm / (threads * ctas)) / 8 * 8;
}

void release_cluster_if_complete(Cluster& cluster) {
  u32 live = 0;
  for (Cta& cta : cluster.ctas)
    for (Warp& w : cta.warps) live += w.alive != 0;
  if (!cluster.arrived || cluster.arrived < live) return;
  cluster.arrived = 0;
  ++cluster.barrier_phase;
  for (Cta& cta : cluster.ctas)
    for (Warp& w : cta.warps) {
      if (w.state != WarpState::AtCluster) continue;
      w.cluster_arrived = false;
      race_acquire(w, cta.cluster_times, cta.cluster_fenced);
      wake(w);
    }
}

namespace {

// o[0] = o[1] in CTA o[2]; sub: generic addresses.
template <class T>
void exec_mapa(Warp& w, const Inst& i, u32 m) {
  const u32* rank = w.r32(i.o[2]);
  In<T> a(w, i.o[1]);
  for (u32 left = m; left; left &= left - 1) {
    int l = __builtin_ctz(left);
    u64 address = static_cast<u64>(a[l]) + static_cast<u64>(i.imm);
    if (i.sub && resolve_generic(&address) != Space::Shared)
      throw_lane_error(w, i, l, "memory", address, "mapa of an address outside shared memory");
    if (rank[l] >= w.cta->cluster->ctas.size())
      throw_lane_error(w, i, l, "memory", address,
                       "mapa to CTA rank " + std::to_string(rank[l]) + " of a cluster of " +
                           std::to_string(w.cta->cluster->ctas.size()));
    address = (address & ((1u << kClusterShift) - 1)) | static_cast<u64>(rank[l] + 1) << kClusterShift;
    slot_ptr<Slot<T>>(w, i.o[0])[l] = static_cast<Slot<T>>(address + (i.sub ? kSharedWindow : 0));
  }
}

template <class T>
void exec_getctarank(Warp& w, const Inst& i, u32 m) {
  In<T> a(w, i.o[1]);
  for (u32 left = m; left; left &= left - 1) {
    int l = __builtin_ctz(left);
    u64 address = static_cast<u64>(a[l]);
    if (i.sub) resolve_generic(&address);
    u64 rank = address >> kClusterShift;
    w.r32(i.o[0])[l] = rank ? static_cast<u32>(rank - 1) : w.cta->rank;
  }
}

void decode_mapa(Decoding& d) {
  d.require_sm(90, d.raw.opcode);
  bool rank = d.raw.opcode == "getctarank";
  bool generic = !d.take("shared::cluster");
  Ty type = d.take_type();
  if (type != Ty::U32 && type != Ty::U64) d.unsupported("this " + d.raw.opcode);
  if (generic && type == Ty::U32) d.unsupported("a 32-bit generic address");
  d.need(rank ? 2 : 3);
  d.inst.sub = generic;
  d.inst.o[0] = d.dst(0, rank ? Ty::U32 : type);
  d.inst.o[1] = d.src(1, type);
  if (!rank) d.inst.o[2] = d.src(2, Ty::U32);
  if (rank)
    d.use(type == Ty::U32 ? exec_getctarank<u32> : exec_getctarank<u64>, Cls::Mov);
  else
    d.use(type == Ty::U32 ? exec_mapa<u32> : exec_mapa<u64>, Cls::Mov);
}

void check_whole(Warp& w, const Inst& i, u32 m) {
  if (m == w.alive) return;
  throw_warp_error(w, i, m, "deadlock",
                   "executed by lanes " + hex(m) + " of a warp whose live lanes are " + hex(w.alive) +
                       ": the others took another path");
}

void exec_cluster_arrive(Warp& w, const Inst& i, u32 m) {
  check_whole(w, i, m);
  if (w.cluster_arrived)
    throw_warp_error(w, i, m, "deadlock", "the warp arrives twice at barrier.cluster without a wait between");
  w.cluster_arrived = true;
  w.cluster_phase = w.cta->cluster->barrier_phase;
  race_publish(w, w.cta->cluster_times, w.cta->cluster_fenced);
  if (!i.sub)  // CUTLASS's wgmma_tma_sm90 has nothing but this release between mbarrier.init and TMA
    for (auto& item : w.cta->mbarriers) item.second.init_fenced = true;
  ++w.cta->cluster->arrived;
  release_cluster_if_complete(*w.cta->cluster);
}

void exec_cluster_wait(Warp& w, const Inst& i, u32 m) {
  check_whole(w, i, m);
  if (!w.cluster_arrived)
    throw_warp_error(w, i, m, "deadlock", "barrier.cluster.wait without an arrive before it");
  if (w.cta->cluster->barrier_phase > w.cluster_phase) {
    w.cluster_arrived = false;
    return race_acquire(w, w.cta->cluster_times, w.cta->cluster_fenced);
  }
  w.wait_pc = i.index;
  w.state = WarpState::AtCluster;
  ++w.worker->counters.barrier_waits;
}

// imm: registers per thread; sub: increase.
void exec_setmaxnreg(Warp& w, const Inst& i, u32 m) {
  check_whole(w, i, m);
  u32 wanted = static_cast<u32>(i.imm);
  Cta& cta = *w.cta;
  if (i.sub ? wanted < w.registers : wanted > w.registers)
    throw_warp_error(w, i, m, "launch",
                     std::string("setmaxnreg.") + (i.sub ? "inc" : "dec") + " to " + std::to_string(wanted) +
                         " by a warp that has " + std::to_string(w.registers) + " registers per thread");
  i64 change = (static_cast<i64>(wanted) - w.registers) * kLanes;
  if (change > cta.register_pool) {
    w.wait_phase = static_cast<u64>(change);
    return suspend_and_retry(w, i, m, WarpState::AtSetmaxnreg);
  }
  cta.register_pool -= change;
  w.registers = wanted;
  if (change < 0)
    for (Warp& other : cta.warps)
      if (other.state == WarpState::AtSetmaxnreg) wake(other);
}

void decode_setmaxnreg(Decoding& d) {
  if (d.builder.sm() != 90 || !d.builder.arch_specific()) d.unsupported("setmaxnreg (needs .target sm_90a)");
  d.inst.sub = d.take("inc");
  if (!d.inst.sub && !d.take("dec")) d.unsupported("this setmaxnreg");
  if (!d.take("sync") || !d.take("aligned")) d.unsupported("setmaxnreg without .sync.aligned");
  d.take("u32");
  d.need(1);
  if (d.op(0).kind != Operand::Int) d.malformed("the register count is not a constant");
  d.inst.imm = static_cast<i64>(d.op(0).bits);
  if (d.inst.imm < 24 || d.inst.imm > 256 || d.inst.imm % 8)
    d.malformed("register count " + std::to_string(d.inst.imm) + "; multiples of 8 from 24 to 256 are allowed");
  d.inst.flags |= kControl;
  d.use(exec_setmaxnreg, Cls::Other);
}

}  // namespace

void decode_cluster_barrier(Decoding& d) {
  d.require_sm(90, "barrier.cluster");
  bool arrive = d.take("arrive");
  if (!arrive && !d.take("wait")) d.unsupported("this barrier.cluster");
  d.inst.sub = d.take("relaxed");
  for (const char* mod : {"release", "acquire", "aligned"}) d.take(mod);
  d.need(0);
  d.inst.flags |= kControl;
  d.use(arrive ? exec_cluster_arrive : exec_cluster_wait, Cls::Barrier);
}

void add_cluster_ops(OpTable& t) {
  t["mapa"] = t["getctarank"] = decode_mapa;
  t["setmaxnreg"] = decode_setmaxnreg;
}

}  // namespace ptxsim
