// SPDX-License-Identifier: Apache-2.0
// CTA barriers: bar.sync, bar.arrive, bar.red and their barrier.* spellings; bar.warp.sync. Counting and release are
// the executor's.
#include "decode.hpp"
#include "executor.hpp"
#include "lanes.hpp"
#include "memory.hpp"

namespace ptxsim {

void decode_cluster_barrier(Decoding&);  // ops_cluster.cpp

namespace {

// o[1] barrier number, o[2] thread count or none (ext == nullptr means no count).
u32 uniform(Warp& w, const Inst& i, u32 slot, u32 m, const char* what) {
  const u32* p = w.r32(slot);
  u32 value = p[__builtin_ctz(m)];
  for (u32 left = m; left; left &= left - 1)
    if (p[__builtin_ctz(left)] != value)
      throw_warp_error(w, i, m, "deadlock", std::string("lanes of one warp disagree about the ") + what);
  return value;
}

u32 thread_count(Warp& w, const Inst& i, u32 m) {
  if (!i.width[1]) return 0;
  u32 count = uniform(w, i, i.o[2], m, "thread count of a barrier");
  if (!count) throw_warp_error(w, i, m, "launch", "a barrier's thread count is 0");
  return count;
}

void exec_sync(Warp& w, const Inst& i, u32 m) {
  barrier_arrive(w, i, m, uniform(w, i, i.o[1], m, "barrier number"), thread_count(w, i, m), true);
}

void exec_arrive(Warp& w, const Inst& i, u32 m) {
  barrier_arrive(w, i, m, uniform(w, i, i.o[1], m, "barrier number"), thread_count(w, i, m), false);
}

void exec_red(Warp& w, const Inst& i, u32 m) {
  u32 id = uniform(w, i, i.o[1], m, "barrier number");
  u32 p = read_pred(w, i, i.o[3], 3) & m;
  if (id < 16) {
    BarrierState& b = w.cta->barriers[id];
    b.red_popc += static_cast<u32>(__builtin_popcount(p));
    b.red_and &= p == m;
    b.red_or |= p != 0;
  }
  barrier_arrive(w, i, m, id, thread_count(w, i, m), true);
}

void exec_warp_sync(Warp& w, const Inst& i, u32 m) {
  const u32* members = w.r32(i.o[1]);
  for (u32 left = m; left; left &= left - 1) {
    int l = __builtin_ctz(left);
    if ((members[l] & ~m) || !(members[l] >> l & 1))
      throw_lane_error(
          w, i, l, "deadlock", 0,
          "member mask " + hex(members[l]) + " names lanes that do not execute this instruction (" + hex(m) + " do)");
  }
}

void decode_bar(Decoding& d) {
  bool long_form = d.raw.opcode == "barrier";
  if (long_form && d.take("cluster")) return decode_cluster_barrier(d);
  d.take("cta");
  if (d.take("warp")) {
    if (!d.take("sync")) d.unsupported("this bar.warp");
    d.need(1);
    d.inst.o[1] = d.src(0, Ty::B32);
    return d.use(exec_warp_sync, Cls::WarpOp);
  }
  if (long_form) d.take("aligned");
  d.inst.flags |= kControl;
  if (d.take("red")) {
    std::string how = d.take_any({"popc", "and", "or"});
    d.take(how == "popc" ? "u32" : "pred");
    d.need(3, 4);
    d.inst.width[0] = how == "popc" ? 1 : how == "and" ? 2 : 3;
    d.inst.o[0] = how == "popc" ? d.dst(0, Ty::U32) : d.pred_dst(d.op(0));
    d.inst.o[1] = d.src(1, Ty::U32);
    if (d.count() == 4) d.inst.o[2] = d.src(2, Ty::U32), d.inst.width[1] = 1;
    d.inst.o[3] = d.pred_src(d.op(d.count() - 1), 3);
    return d.use(exec_red, Cls::Barrier);
  }
  bool arrive = d.take("arrive");
  if (!arrive && !d.take("sync")) d.unsupported("this barrier operation");
  d.need(arrive ? 2 : 1, 2);
  d.inst.o[1] = d.src(0, Ty::U32);
  if (d.count() == 2) d.inst.o[2] = d.src(1, Ty::U32), d.inst.width[1] = 1;
  d.use(arrive ? exec_arrive : exec_sync, Cls::Barrier);
}

}  // namespace

void add_barrier_ops(OpTable& t) { t["bar"] = t["barrier"] = decode_bar; }

}  // namespace ptxsim
