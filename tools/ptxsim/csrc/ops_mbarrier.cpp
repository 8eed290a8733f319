// SPDX-License-Identifier: Apache-2.0
// mbarrier objects: init, inval, arrive, expect_tx, complete_tx, test_wait, try_wait, cp.async.mbarrier.arrive. The
// object's 8 bytes in shared memory hold nothing here: touching them with anything else is an error, and the state
// (phase, pending arrivals, pending bytes) lives beside them. A try_wait that fails suspends its warp until the phase
// is complete, which is one of the behaviours that the ISA allows; a test_wait that fails ends the warp's slice.
#include <algorithm>

#include "async.hpp"
#include "executor.hpp"
#include "memory.hpp"
#include "ops_memory.hpp"
#include "race.hpp"

namespace ptxsim {
namespace {

constexpr u32 kMaxCount = (1u << 20) - 1;
constexpr u64 kStateTag = 0xb5ull << 56;

std::string state_text(const Mbarrier& b) {
  return "phase " + std::to_string(b.phase) + " (parity " + std::to_string(b.phase & 1) + "), " +
         std::to_string(b.pending) + " of " + std::to_string(b.expected) + " arrivals pending, tx-count " +
         std::to_string(b.tx) + " B";
}

void complete_phase_if_done(Cta& cta, u32 offset, Mbarrier& b) {
  if (b.pending || b.tx) return;
  ++b.phase;
  b.pending = b.expected;
  std::copy(b.pending_times, b.pending_times + kLanes, b.times);
  std::copy(b.pending_fenced, b.pending_fenced + kLanes, b.fenced);
  for (Warp& w : cta.warps) {
    if (w.state != WarpState::AtMbarrier || w.wait_address != offset || w.wait_phase >= b.phase) continue;
    w.preds[w.wait_pred] |= w.wait_lanes;
    race_acquire(w, b.times, b.fenced);
    wake(w);
  }
}

void add_tx(Warp& w, const Inst& i, int lane, u32 offset, Mbarrier& b, i64 bytes) {
  b.tx += bytes;
  if (b.tx > static_cast<i64>(kMaxCount) || b.tx < -static_cast<i64>(kMaxCount))
    throw_lane_error(w, i, lane, "mbarrier", offset,
                     "tx-count of the mbarrier at byte " + std::to_string(offset) + " leaves its range of 2^20 - 1: " +
                         state_text(b));
}

}  // namespace

Mbarrier& find_mbarrier(Warp& w, const Inst& i, int lane, Cta& cta, u32 offset) {
  auto found = cta.mbarriers.find(offset);
  if (found == cta.mbarriers.end()) {
    std::string where = &cta == w.cta ? "" : " of CTA rank " + std::to_string(cta.rank);
    throw_lane_error(w, i, lane, "mbarrier", offset,
                     "no mbarrier is initialized at shared-memory byte " + std::to_string(offset) + where);
  }
  return found->second;
}

void mbarrier_arrive(Warp& w, const Inst& i, int lane, Cta& cta, u32 offset, u32 count, i64 expect) {
  Mbarrier& b = find_mbarrier(w, i, lane, cta, offset);
  if (expect) add_tx(w, i, lane, offset, b, expect);
  if (count > b.pending)
    throw_lane_error(w, i, lane, "mbarrier", offset,
                     "more arrivals at the mbarrier at byte " + std::to_string(offset) + " than its count: " +
                         state_text(b) + ", got " + std::to_string(count) + " more");
  b.pending -= count;
  if (&cta == w.cta && count) race_publish(w, b.pending_times, b.pending_fenced);
  complete_phase_if_done(cta, offset, b);
}

void mbarrier_complete_tx(Cta& cta, u32 offset, const Clock* clock, u32 bytes) {
  auto found = cta.mbarriers.find(offset);
  if (found == cta.mbarriers.end()) return;  // invalidated meanwhile; nothing waits for it
  Mbarrier& b = found->second;
  b.tx -= bytes;
  if (clock) race_merge(*clock, b.pending_times, b.pending_fenced);
  complete_phase_if_done(cta, offset, b);
}

std::string describe_mbarriers(const Cta& cta, const Entry& entry) {
  std::string out;
  for (const auto& item : cta.mbarriers) {
    std::string waiters;
    for (const Warp& w : cta.warps)
      if (w.state == WarpState::AtMbarrier && w.wait_address == item.first)
        waiters += " " + std::to_string(w.id) + " (for the end of phase " + std::to_string(w.wait_phase) + ")";
    const Mbarrier& b = item.second;
    bool idle = b.pending == b.expected && !b.tx;
    if (waiters.empty() && idle) continue;
    out += "  mbarrier at byte " + std::to_string(item.first) + " (PTX line " +
           std::to_string(entry.lines[b.init_pc]) + "): " + state_text(b);
    if (b.tx > 0) out += " (more bytes were expected than have been copied)";
    if (b.tx < 0) out += " (more bytes were copied than expect_tx announced)";
    out += waiters.empty() ? "\n" : "; waits: warp" + waiters + "\n";
  }
  return out;
}

namespace {

// o[1]: address slot, width[0] its bits, imm its offset; sub: 1 shared::cluster, 2 generic; o[0]: destination.
SharedPlace place(Warp& w, const Inst& i, int lane, const u64* addresses) {
  u64 address = addresses[lane];
  if ((i.sub & 2) && resolve_generic(&address) != Space::Shared)
    throw_lane_error(w, i, lane, "memory", address, "mbarrier address is not in shared memory");
  if (address & 7)
    throw_lane_error(w, i, lane, "misaligned", address, "mbarrier address " + hex(address) + " is not a multiple of 8");
  SharedPlace p = cluster_place(w, i, lane, address);
  if (p.cta != w.cta && !(i.sub & 1))
    throw_lane_error(w, i, lane, "memory", address, "this form takes an mbarrier of the own CTA only");
  if (p.offset + 8 > p.cta->smem.size()) shared_fault(w, i, lane, p.offset, 8);
  return p;
}

void addresses_of(Warp& w, const Inst& i, u64* out) { lane_addresses(w, i, i.o[1], i.width[0], i.imm, out); }

template <class F>
void each(u32 mask, F f) {
  for (u32 left = mask; left; left &= left - 1) f(__builtin_ctz(left));
}

void note_read(Warp& w, const Inst& i, int lane, const SharedPlace& p) {
  if (p.cta != w.cta) return;
  u32 offsets[kLanes] = {};
  offsets[lane] = p.offset;
  race_read(w, i, 1u << lane, offsets, 8);
}

void exec_init(Warp& w, const Inst& i, u32 m) {
  u64 addresses[kLanes];
  addresses_of(w, i, addresses);
  each(m, [&](int l) {
    SharedPlace p = place(w, i, l, addresses);
    u32 count = w.r32(i.o[2])[l], offsets[kLanes] = {};
    if (!count || count > kMaxCount)
      throw_lane_error(w, i, l, "mbarrier", p.offset,
                       "mbarrier count " + std::to_string(count) + " is outside 1 to 2^20 - 1");
    u8* state = p.cta->smem_state.data() + p.offset;
    for (int k = 0; k < 8; ++k)
      if (state[k] & kInFlight) in_flight_fault(w, i, l, p.offset);
    offsets[l] = p.offset;
    race_write(w, i, 1u << l, offsets, 8, 1u << l);
    std::memset(state, kMbarrierObject, 8);
    Mbarrier b;
    b.expected = b.pending = count, b.init_pc = i.index;
    p.cta->mbarriers[p.offset] = b;
  });
}

void exec_inval(Warp& w, const Inst& i, u32 m) {
  u64 addresses[kLanes];
  addresses_of(w, i, addresses);
  each(m, [&](int l) {
    SharedPlace p = place(w, i, l, addresses);
    find_mbarrier(w, i, l, *p.cta, p.offset);
    u32 offsets[kLanes] = {};
    offsets[l] = p.offset;
    race_write(w, i, 1u << l, offsets, 8, 1u << l);
    std::memset(p.cta->smem_state.data() + p.offset, kUnwritten, 8);
    p.cta->mbarriers.erase(p.offset);
  });
}

// o[2]: count or bytes; vec: 1 a count operand is there, 2 bytes are (expect_tx); bytes: 1 arrives, 0 expect_tx only,
// 2 complete_tx; width[1]: 64 when there is a state to return.
void exec_arrive(Warp& w, const Inst& i, u32 m) {
  u64 addresses[kLanes];
  addresses_of(w, i, addresses);
  each(m, [&](int l) {
    SharedPlace p = place(w, i, l, addresses);
    note_read(w, i, l, p);
    Mbarrier& b = find_mbarrier(w, i, l, *p.cta, p.offset);
    u64 state = kStateTag | b.phase;
    u32 value = i.vec ? w.r32(i.o[2])[l] : 1;
    if (i.bytes == 2) {
      mbarrier_complete_tx(*p.cta, p.offset, nullptr, value);
    } else if (i.bytes == 0) {
      add_tx(w, i, l, p.offset, b, value);
    } else {
      if (i.vec == 1 && !value)
        throw_lane_error(w, i, l, "mbarrier", p.offset, "an arrival with count 0");
      mbarrier_arrive(w, i, l, *p.cta, p.offset, i.vec == 1 ? value : 1, i.vec == 2 ? value : 0);
    }
    if (i.width[1] == 64) w.r64(i.o[0])[l] = state;
  });
}

// vec: 1 try_wait, 0 test_wait; bytes: 1 parity form; o[0] predicate, o[2] state or parity.
void exec_wait(Warp& w, const Inst& i, u32 m) {
  u64 addresses[kLanes];
  addresses_of(w, i, addresses);
  u32 done = 0, failing = 0;
  u64 wanted[kLanes] = {};
  u32 offsets[kLanes] = {};
  each(m, [&](int l) {
    SharedPlace p = place(w, i, l, addresses);
    Mbarrier& b = find_mbarrier(w, i, l, *p.cta, p.offset);
    offsets[l] = p.offset;
    if (i.bytes) {
      u32 parity = w.r32(i.o[2])[l];
      if (parity > 1)
        throw_lane_error(w, i, l, "mbarrier", p.offset, "phase parity " + std::to_string(parity) + " is not 0 or 1");
      wanted[l] = (b.phase & 1) == parity ? b.phase : b.phase - 1;  // the one before phase 0 counts as complete
      if ((b.phase & 1) != parity) done |= 1u << l;
    } else {
      u64 state = w.r64(i.o[2])[l];
      u64 phase = state & ~(0xffull << 56);
      if ((state & (0xffull << 56)) != kStateTag || phase > b.phase || phase + 1 < b.phase)
        throw_lane_error(w, i, l, "mbarrier", p.offset,
                         "the state operand belongs to neither the current nor the preceding phase of this mbarrier");
      wanted[l] = phase;
      if (b.phase > phase) done |= 1u << l;
    }
    if (done >> l & 1) race_acquire(w, b.times, b.fenced);
  });
  race_read(w, i, m, offsets, 8);
  w.preds[i.o[0]] = (w.preds[i.o[0]] & ~m) | done;
  failing = m & ~done;
  if (!failing) return;
  if (!i.vec) {
    w.yields = true;
    return;
  }
  int first = __builtin_ctz(failing);
  w.wait_address = offsets[first], w.wait_phase = wanted[first], w.wait_pred = i.o[0], w.wait_pc = i.index;
  w.wait_lanes = 0;
  each(failing, [&](int l) {
    if (offsets[l] == offsets[first] && wanted[l] == wanted[first]) w.wait_lanes |= 1u << l;
  });
  w.state = WarpState::AtMbarrier;
  ++w.worker->counters.barrier_waits;
}

// cp.async.mbarrier.arrive: an arrival when the thread's prior cp.async are complete. As late as allowed would be any
// time; the copies complete here and the arrival follows at once, so that nothing waits for a copy that nobody awaits.
// vec: .noinc.
void exec_copy_arrive(Warp& w, const Inst& i, u32 m) {
  u32 limit[kLanes];
  for (int l = 0; l < kLanes; ++l) limit[l] = w.copy_group[l] + 1;
  complete_copies(w, m, limit);
  u64 addresses[kLanes];
  addresses_of(w, i, addresses);
  each(m, [&](int l) {
    SharedPlace p = place(w, i, l, addresses);
    note_read(w, i, l, p);
    if (!i.vec) ++find_mbarrier(w, i, l, *p.cta, p.offset).pending;
    mbarrier_arrive(w, i, l, *p.cta, p.offset, 1, 0);
  });
}

void take_space(Decoding& d, size_t address) {
  if (d.take("shared::cluster"))
    d.inst.sub = 1;
  else if (!d.take("shared::cta") && !d.take("shared"))
    d.inst.sub = 2;
  Space space = d.inst.sub & 2 ? Space::Generic : Space::Shared;
  d.inst.o[1] = address_slot(d, d.op(address), &space, &d.inst.width[0]);
  if (space == Space::Shared) d.inst.sub &= static_cast<u8>(~2u);
}

void decode_arrive(Decoding& d, bool drop) {
  bool expect = d.take("expect_tx");
  if (d.take("noComplete")) d.unsupported("mbarrier.arrive.noComplete");
  for (const char* mod : {"release", "cta", "cluster"}) d.take(mod);
  if (d.take("relaxed")) d.unsupported("a relaxed arrival");
  if (drop) d.unsupported("mbarrier.arrive_drop");
  d.take("b64");
  bool has_state = !d.op(0).elems.empty() ? d.op(0).kind != Operand::Memory : true;
  size_t first = has_state ? 1 : 0;
  d.need(first + 1, first + 2);
  take_space(d, first);
  d.inst.bytes = 1;
  if (has_state && d.op(0).kind != Operand::Sink) d.inst.o[0] = d.dst(0, Ty::B64), d.inst.width[1] = 64;
  if (d.count() == first + 2) d.inst.o[2] = d.src(first + 1, Ty::U32), d.inst.vec = expect ? 2 : 1;
  if (expect && d.inst.vec != 2) d.malformed("expect_tx takes a byte count");
  d.use(exec_arrive, Cls::Mbarrier);
}

void decode_wait(Decoding& d, bool try_) {
  d.inst.vec = try_;
  d.inst.bytes = d.take("parity");
  for (const char* mod : {"acquire", "cta", "cluster"}) d.take(mod);
  if (d.take("relaxed")) d.unsupported("a relaxed wait");
  d.take("b64");
  d.need(3, try_ ? 4 : 3);
  take_space(d, 1);
  d.inst.o[0] = d.pred_dst(d.op(0));
  d.inst.o[2] = d.inst.bytes ? d.src(2, Ty::U32) : d.src(2, Ty::B64);
  if (d.count() == 4) d.src(3, Ty::U32);  // suspendTimeHint
  d.inst.flags |= kControl;
  d.use(exec_wait, Cls::Mbarrier);
}

void decode_mbarrier(Decoding& d) {
  d.inst.vec = 0;
  if (d.take("init") || d.take("inval")) {
    bool init = d.raw.mods[0] == "init";
    d.take("b64");
    d.need(init ? 2 : 1);
    take_space(d, 0);
    if (init) d.inst.o[2] = d.src(1, Ty::U32);
    return d.use(init ? exec_init : exec_inval, Cls::Mbarrier);
  }
  if (d.take("arrive")) return decode_arrive(d, false);
  if (d.take("arrive_drop")) return decode_arrive(d, true);
  if (d.take("expect_tx") || d.take("complete_tx")) {
    d.inst.bytes = d.raw.mods[0] == "complete_tx" ? 2 : 0;
    for (const char* mod : {"relaxed", "cta", "cluster", "b64"}) d.take(mod);
    d.need(2);
    take_space(d, 0);
    d.inst.o[2] = d.src(1, Ty::U32), d.inst.vec = 2;
    return d.use(exec_arrive, Cls::Mbarrier);
  }
  if (d.take("test_wait")) return decode_wait(d, false);
  if (d.take("try_wait")) return d.require_sm(90, "mbarrier.try_wait"), decode_wait(d, true);
  d.unsupported("this mbarrier operation");
}

}  // namespace

void decode_copy_arrive(Decoding& d) {
  d.take("arrive");
  d.inst.vec = d.take("noinc");
  d.take("b64");
  d.need(1);
  take_space(d, 0);
  d.use(exec_copy_arrive, Cls::Mbarrier);
}

void add_mbarrier_ops(OpTable& t) { t["mbarrier"] = decode_mbarrier; }

}  // namespace ptxsim
