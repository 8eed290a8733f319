// SPDX-License-Identifier: Apache-2.0
// Control flow: bra, brx, exit, ret, trap, and instructions without a functional effect (fences, prefetch, nanosleep).
// A CTA runs on one host thread and its memory operations take effect in order, so fences order nothing further here;
// device-scope ordering between CTAs is that of the host's atomics.
#include "decode.hpp"
#include "executor.hpp"
#include "memory.hpp"
#include "race.hpp"

namespace ptxsim {
namespace {

void exec_bra(Warp& w, const Inst& i, u32 m) { branch(w, i, m, i.target); }

void exec_exit(Warp& w, const Inst&, u32 m) { exit_lanes(w, m); }

void exec_trap(Warp& w, const Inst& i, u32 m) { throw_warp_error(w, i, m, "trap", "the kernel executed trap"); }
void exec_brkpt(Warp& w, const Inst& i, u32 m) { throw_warp_error(w, i, m, "trap", "the kernel executed brkpt"); }

void exec_nothing(Warp&, const Inst&, u32) {}

void decode_bra(Decoding& d) {
  d.take("uni");
  d.need(1);
  if (d.op(0).kind != Operand::Symbol) d.malformed("branch target is not a label");
  d.inst.target = d.builder.label(d.op(0).name, d.raw.scope);
  d.inst.flags |= kControl;
  d.use(exec_bra, Cls::Branch);
}

// ext: count, targets...
void exec_brx(Warp& w, const Inst& i, u32 m) {
  const u32* index = w.r32(i.o[1]);
  u32 targets[kLanes] = {};
  for (u32 left = m; left; left &= left - 1) {
    int l = __builtin_ctz(left);
    if (index[l] >= i.ext[0])
      throw_lane_error(w, i, l, "trap", 0, "brx index " + std::to_string(index[l]) + " exceeds the target list");
    targets[l] = i.ext[1 + index[l]];
  }
  branch_many(w, i, m, targets);
}

void decode_brx(Decoding& d) {
  d.take("uni");
  if (!d.take("idx")) d.unsupported("this brx");
  d.need(2);
  d.inst.o[1] = d.src(0, Ty::U32);
  std::vector<u32> list = d.builder.target_list(d.op(1).name, d.raw.scope);
  list.insert(list.begin(), static_cast<u32>(list.size()));
  d.inst.ext = d.builder.keep(list);
  d.inst.flags |= kControl | kMultiway;
  d.use(exec_brx, Cls::Branch);
}

void decode_exit(Decoding& d) {
  d.take("uni");
  d.need(0);
  d.inst.flags |= kControl;
  d.use(exec_exit, Cls::Branch);
}

void decode_trap(Decoding& d) {
  d.need(0);
  d.use(d.raw.opcode == "trap" ? exec_trap : exec_brkpt, Cls::Other);
}

void decode_call(Decoding& d) { d.unsupported("a function call"); }

// mbarriers that have been initialized become visible to the async proxy and to the cluster. Whose fence it is, is not
// asked: a fence before the initialization is known to its warp can hide a missing one.
void exec_init_fence(Warp& w, const Inst&, u32) {
  for (auto& item : w.cta->mbarriers) item.second.init_fenced = true;
}

// The async proxy reads shared memory: what this warp knows of is now visible to it.
void exec_proxy_fence(Warp& w, const Inst& i, u32 m) {
  race_fence(w);
  exec_init_fence(w, i, m);
}

bool decode_proxy_fence(Decoding& d) {
  if (d.take("mbarrier_init")) {
    if (!d.take("release") || !d.take("cluster")) d.unsupported("this fence.mbarrier_init");
    return d.need(0), d.use(exec_init_fence, Cls::Fence), true;
  }
  bool proxy = d.take("proxy");
  if (proxy && d.take("async")) {
    bool global = d.take("global");
    d.take("shared::cta"), d.take("shared::cluster");
    return d.need(0), d.use(global ? exec_nothing : exec_proxy_fence, Cls::Fence), true;
  }
  if (proxy && d.take("tensormap::generic")) {
    bool acquire = d.take("acquire");
    if (!acquire && !d.take("release")) d.unsupported("this fence.proxy.tensormap");
    for (const char* word : {"cta", "cluster", "gpu", "sys"}) d.take(word);
    return d.need(acquire ? 2 : 0), d.use(exec_nothing, Cls::Fence), true;
  }
  if (proxy && d.take("alias")) return d.need(0), d.use(exec_nothing, Cls::Fence), true;
  return false;
}

void decode_fence(Decoding& d) {
  if (decode_proxy_fence(d)) return;
  d.need(0);
  for (const char* word : {"sc", "acq_rel", "acquire", "release", "cta", "cluster", "gpu", "sys", "gl"})
    d.take(word);
  for (const std::string& left : d.left()) d.unsupported("modifier ." + left + " of " + d.raw.opcode);
  d.use(exec_nothing, Cls::Fence);
}

void decode_nanosleep(Decoding& d) {
  d.need(1);
  d.take("u32");
  d.src(0, Ty::U32);
  d.use(exec_nothing, Cls::Other);
}

void decode_prefetch(Decoding& d) {
  if (d.take("tensormap")) {
    d.take_any({"param", "const"});
    return d.need(1), d.use(exec_nothing, Cls::Other);
  }
  d.take_any({"global", "local"});
  if (d.raw.opcode == "prefetchu" && !d.take("L1")) d.unsupported("this prefetchu");
  if (d.raw.opcode == "prefetch" && d.take_any({"L1", "L2", "L2::evict_last", "L2::evict_normal"}).empty())
    d.unsupported("this prefetch level");
  d.need(1);
  d.use(exec_nothing, Cls::Other);
}

void decode_griddepcontrol(Decoding& d) {
  d.require_sm(90, "griddepcontrol");
  if (d.take_any({"launch_dependents", "wait"}).empty()) d.unsupported("this griddepcontrol");
  d.need(0);
  d.use(exec_nothing, Cls::Fence);
}

}  // namespace

void add_control_ops(OpTable& t) {
  t["bra"] = decode_bra;
  t["brx"] = decode_brx;
  t["exit"] = t["ret"] = decode_exit;
  t["trap"] = t["brkpt"] = decode_trap;
  t["call"] = decode_call;
  t["fence"] = t["membar"] = decode_fence;
  t["nanosleep"] = decode_nanosleep;
  t["prefetch"] = t["prefetchu"] = decode_prefetch;
  t["griddepcontrol"] = decode_griddepcontrol;
}

}  // namespace ptxsim
