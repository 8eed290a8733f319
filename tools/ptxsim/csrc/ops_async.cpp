// SPDX-License-Identifier: Apache-2.0
// cp.async. Issue checks addresses and marks the destination bytes as in flight (reading them is an error); the copy
// itself, source read included, happens at the wait that guarantees it, or in random mode at some earlier moment.
// Copies that no wait covers never happen.
#include "executor.hpp"
#include "memory.hpp"
#include "ops_memory.hpp"
#include "race.hpp"

namespace ptxsim {

void decode_bulk(Decoding&, bool reduce);  // ops_bulk.cpp
void decode_copy_arrive(Decoding&);        // ops_mbarrier.cpp

namespace {

// o[0] dst, o[1] src, o[2] src-size register or constant (width[1] & 1), o[3] ignore-src predicate (width[1] & 2);
// imm: dst offset, ext[0..1]: src offset; width[0]: dst address bits, sub: src address bits.
void exec_copy(Warp& w, const Inst& i, u32 m) {
  u64 dst[kLanes], src[kLanes];
  i64 src_offset = static_cast<i64>(static_cast<u64>(i.ext[0]) | static_cast<u64>(i.ext[1]) << 32);
  lane_addresses(w, i, i.o[0], i.width[0], i.imm, dst);
  lane_addresses(w, i, i.o[1], i.sub, src_offset, src);
  u32 ignore = i.width[1] & 2 ? read_pred(w, i, i.o[3], 3) : 0;
  const u32* sizes = i.width[1] & 1 ? w.r32(i.o[2]) : nullptr;
  PendingCopy copy;
  copy.pc = i.index, copy.bytes = i.bytes;
  u32 nonempty = 0, offsets[kLanes];
  u64 read = 0;
  for (u32 left = m; left; left &= left - 1) {
    int l = __builtin_ctz(left);
    u32 size = (ignore >> l & 1) ? 0 : sizes ? sizes[l] : i.bytes;
    if (size > i.bytes)
      throw_lane_error(w, i, l, "memory", dst[l],
                       "cp.async src-size " + std::to_string(size) + " exceeds cp-size " + std::to_string(i.bytes));
    shared_ptr(w, i, l, dst[l], i.bytes, Access::Write);
    std::memset(w.cta->smem_state.data() + dst[l], kInFlight, i.bytes);
    if (size) {
      check_aligned(w, i, l, src[l], i.bytes);
      u64 last = src[l] + size - 1;  // sizes below the copy's need not be powers of two
      global_ptr(w, i, l, src[l], 1, Access::Read), global_ptr(w, i, l, last, 1, Access::Read);
      nonempty |= 1u << l, read += size;
    }
    copy.dst[l] = offsets[l] = static_cast<u32>(dst[l]), copy.src[l] = src[l],
    copy.src_bytes[l] = static_cast<u8>(size);
  }
  race_write(w, i, m, copy.dst, i.bytes, m);  // the copy may land at once
  for (u32 left = m; left;) {                 // one record per group number; lanes nearly always agree
    u32 group = w.copy_group[__builtin_ctz(left)], same = 0;
    for (u32 rest = left; rest; rest &= rest - 1)
      if (w.copy_group[__builtin_ctz(rest)] == group) same |= rest & (0 - rest);
    copy.mask = same, copy.group = group;
    w.copies.push_back(copy);
    left &= ~same;
  }
  if (!w.worker->launch->stats) return;
  Counters& c = w.worker->counters;
  c.shared_access(SharedPort::CpAsync, offsets, m, i.bytes);
  u64 before = c.global_bytes_read;
  if (nonempty) c.global_access(false, src, nonempty, i.bytes);
  c.global_bytes_read = before + read;
}

void exec_commit(Warp& w, const Inst&, u32 m) {
  for (u32 left = m; left; left &= left - 1) ++w.copy_group[__builtin_ctz(left)];
}

// Groups older than the `imm` newest committed ones are complete.
void exec_wait_group(Warp& w, const Inst& i, u32 m) {
  u32 limit[kLanes], n = static_cast<u32>(i.imm);
  for (int l = 0; l < kLanes; ++l) limit[l] = w.copy_group[l] > n ? w.copy_group[l] - n : 0;
  complete_copies(w, m, limit);
}

void exec_wait_all(Warp& w, const Inst&, u32 m) {
  u32 limit[kLanes];
  for (int l = 0; l < kLanes; ++l) limit[l] = w.copy_group[l] + 1;
  complete_copies(w, m, limit);
}

void decode_copy(Decoding& d) {
  bool cg = d.take("cg");
  if (!cg && !d.take("ca")) d.unsupported("this cp.async");
  if (!d.take("shared") && !d.take("shared::cta")) d.unsupported("cp.async to this state space");
  if (!d.take("global")) d.unsupported("cp.async from this state space");
  for (const char* mod : {"L2::64B", "L2::128B", "L2::256B"}) d.take(mod);
  bool hint = d.take("L2::cache_hint");
  d.need(hint ? 4 : 3, hint ? 5 : 4);
  if (d.op(2).kind != Operand::Int) d.malformed("cp-size is not a constant");
  u64 bytes = d.op(2).bits;
  if (cg ? bytes != 16 : bytes != 4 && bytes != 8 && bytes != 16)
    d.malformed("illegal cp-size " + std::to_string(bytes));
  d.inst.bytes = static_cast<u8>(bytes);
  Space shared = Space::Shared, global = Space::Global;
  d.inst.o[1] = address_slot(d, d.op(1), &global, &d.inst.sub);
  u64 src_offset = static_cast<u64>(d.inst.imm);
  d.inst.ext = d.builder.keep({static_cast<u32>(src_offset), static_cast<u32>(src_offset >> 32)});
  d.inst.o[0] = address_slot(d, d.op(0), &shared, &d.inst.width[0]);
  if (d.count() == (hint ? 5u : 4u)) {
    if (d.is_pred(d.op(3)))
      d.inst.o[3] = d.pred_src(d.op(3), 3), d.inst.width[1] = 2;
    else
      d.inst.o[2] = d.src(3, Ty::U32), d.inst.width[1] = 1;
  }
  d.use(exec_copy, Cls::CpAsync);
}

void decode_cp(Decoding& d) {
  bool reduce = d.take("reduce");
  if (!d.take("async")) d.unsupported("this cp");
  if (d.take("bulk")) return decode_bulk(d, reduce);
  if (reduce) d.unsupported("this cp.reduce");
  if (d.take("mbarrier")) return decode_copy_arrive(d);
  if (d.take("commit_group")) return d.need(0), d.use(exec_commit, Cls::CpAsync);
  if (d.take("wait_all")) return d.need(0), d.use(exec_wait_all, Cls::CpAsync);
  if (d.take("wait_group")) {
    d.need(1);
    if (d.op(0).kind != Operand::Int) d.malformed("wait_group count is not a constant");
    d.inst.imm = static_cast<i64>(d.op(0).bits);
    return d.use(exec_wait_group, Cls::CpAsync);
  }
  decode_copy(d);
}

}  // namespace

void add_async_ops(OpTable& t) { t["cp"] = decode_cp; }

}  // namespace ptxsim
