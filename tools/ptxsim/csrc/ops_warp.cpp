// SPDX-License-Identifier: Apache-2.0
// Warp-collective instructions: shfl, vote, match, activemask, elect, redux. A lane named by the member mask that does
// not execute the instruction together with the others is an error: on hardware it would be waited for.
#include "memory.hpp"
#include "ops_shared.hpp"

namespace ptxsim {
namespace {

void check_members(Warp& w, const Inst& i, u32 slot, u32 m) {
  const u32* members = w.r32(slot);
  for (u32 left = m; left; left &= left - 1) {
    int l = __builtin_ctz(left);
    if ((members[l] & ~m) || !(members[l] >> l & 1))
      throw_lane_error(
          w, i, l, "deadlock", 0,
          "member mask " + hex(members[l]) + " does not fit the lanes that execute this instruction, " + hex(m));
  }
}

// What a lane receives from a lane that does not take part: undefined by the ISA, so nothing plausible.
constexpr u32 kUndefinedLane = 0xdeadbeefu;

// sub: 0 up, 1 down, 2 bfly, 3 idx; o: dst, a, b, c, members, pred.
void exec_shfl(Warp& w, const Inst& i, u32 m) {
  check_members(w, i, i.o[4], m);
  u32 a[kLanes], r[kLanes];
  std::memcpy(a, w.r32(i.o[1]), sizeof a);
  const u32* b = w.r32(i.o[2]);
  const u32* c = w.r32(i.o[3]);
  u32 valid = 0;
  for (int l = 0; l < kLanes; ++l) {
    int bval = static_cast<int>(b[l] & 31), cval = static_cast<int>(c[l] & 31), seg = static_cast<int>(c[l] >> 8 & 31);
    int max_lane = (l & seg) | (cval & ~seg), min_lane = l & seg, j;
    bool ok;
    switch (i.sub) {
      case 0:
        j = l - bval, ok = j >= max_lane;
        break;
      case 1:
        j = l + bval, ok = j <= max_lane;
        break;
      case 2:
        j = l ^ bval, ok = j <= max_lane;
        break;
      default:
        j = min_lane | (bval & ~seg), ok = j <= max_lane;
        break;
    }
    if (!ok) j = l;
    if (ok) valid |= 1u << l;
    r[l] = (m >> (j & 31) & 1) ? a[j & 31] : kUndefinedLane;
  }
  blend(w.r32(i.o[0]), r, m);
  set_pred(w, i.o[5], valid, m);
}

// sub: 0 all, 1 any, 2 uni, 3 ballot.
void exec_vote(Warp& w, const Inst& i, u32 m) {
  check_members(w, i, i.o[2], m);
  u32 p = read_pred(w, i, i.o[1], 1) & m;
  if (i.sub == 3) return lanes<u32>(w, i.o[0], m, [&](int) { return p; });
  bool r = i.sub == 0 ? p == m : i.sub == 1 ? p != 0 : p == m || p == 0;
  set_pred(w, i.o[0], r ? kFullMask : 0, m);
}

template <class T, bool kAll>
void exec_match(Warp& w, const Inst& i, u32 m) {
  check_members(w, i, i.o[2], m);
  T a[kLanes];
  std::memcpy(a, slot_ptr<T>(w, i.o[1]), sizeof a);
  u32 same[kLanes], full = 0;
  for (int l = 0; l < kLanes; ++l) {
    same[l] = 0;
    for (int k = 0; k < kLanes; ++k) same[l] |= (m >> k & 1) && a[k] == a[l] ? 1u << k : 0u;
    if (same[l] == m) full |= 1u << l;
  }
  if (kAll) {
    for (int l = 0; l < kLanes; ++l) same[l] = (full >> l & 1) ? m : 0;
    set_pred(w, i.o[3], full, m);
  }
  blend(w.r32(i.o[0]), same, m);
}

void exec_activemask(Warp& w, const Inst& i, u32 m) {
  lanes<u32>(w, i.o[0], m, [&](int) { return m; });
}

void exec_elect(Warp& w, const Inst& i, u32 m) {
  check_members(w, i, i.o[1], m);
  u32 leader = static_cast<u32>(__builtin_ctz(m));
  lanes<u32>(w, i.o[0], m, [&](int) { return leader; });
  set_pred(w, i.o[2], 1u << leader, m);
}

// sub: 0 add, 1 min, 2 max, 3 and, 4 or, 5 xor; width[0]: signed.
void exec_redux(Warp& w, const Inst& i, u32 m) {
  check_members(w, i, i.o[2], m);
  const u32* a = w.r32(i.o[1]);
  bool first = true;
  u32 r = 0;
  for (u32 left = m; left; left &= left - 1) {
    u32 x = a[__builtin_ctz(left)];
    bool less = i.width[0] ? static_cast<i32>(x) < static_cast<i32>(r) : x < r;
    if (first)
      r = x;
    else if (i.sub == 0)
      r += x;
    else if (i.sub == 1)
      r = less ? x : r;
    else if (i.sub == 2)
      r = less ? r : x;
    else
      r = i.sub == 3 ? r & x : i.sub == 4 ? r | x : r ^ x;
    first = false;
  }
  lanes<u32>(w, i.o[0], m, [&](int) { return r; });
}

void need_sync(Decoding& d) {
  if (!d.take("sync")) d.unsupported(d.raw.opcode + " without .sync");
}

u32 split_pair(Decoding& d, const Operand& op, Ty type, u32* pred) {
  bool pair = op.kind == Operand::Pair;
  *pred = pair ? d.pred_dst(op.elems[1]) : kPredSink;
  return d.dst(pair ? op.elems[0] : op, type);
}

void decode_shfl(Decoding& d) {
  need_sync(d);
  const char* modes[] = {"up", "down", "bfly", "idx"};
  int mode = -1;
  for (int k = 0; k < 4; ++k)
    if (d.take(modes[k])) mode = k;
  d.take("b32");
  if (mode < 0) d.unsupported("this shfl");
  d.need(5);
  d.inst.sub = static_cast<u8>(mode);
  d.inst.o[0] = split_pair(d, d.op(0), Ty::B32, &d.inst.o[5]);
  for (size_t k = 1; k < 5; ++k) d.inst.o[k] = d.src(k, Ty::B32);
  d.use(exec_shfl, Cls::WarpOp);
}

void decode_vote(Decoding& d) {
  need_sync(d);
  const char* modes[] = {"all", "any", "uni", "ballot"};
  int mode = -1;
  for (int k = 0; k < 4; ++k)
    if (d.take(modes[k])) mode = k;
  d.take(mode == 3 ? "b32" : "pred");
  if (mode < 0) d.unsupported("this vote");
  d.need(3);
  d.inst.sub = static_cast<u8>(mode);
  d.inst.o[0] = mode == 3 ? d.dst(0, Ty::B32) : d.pred_dst(d.op(0));
  d.inst.o[1] = d.pred_src(d.op(1), 1);
  d.inst.o[2] = d.src(2, Ty::B32);
  d.use(exec_vote, Cls::WarpOp);
}

void decode_match(Decoding& d) {
  bool all = d.take("all");
  if (!all && !d.take("any")) d.unsupported("this match");
  need_sync(d);
  Ty type = d.take_type();
  d.need(3);
  d.inst.o[0] = split_pair(d, d.op(0), Ty::B32, &d.inst.o[3]);
  d.inst.o[1] = d.src(1, type), d.inst.o[2] = d.src(2, Ty::B32);
  if (type == Ty::B32)
    d.use(all ? exec_match<u32, true> : exec_match<u32, false>, Cls::WarpOp);
  else if (type == Ty::B64)
    d.use(all ? exec_match<u64, true> : exec_match<u64, false>, Cls::WarpOp);
}

void decode_activemask(Decoding& d) {
  d.take("b32");
  d.need(1);
  d.inst.o[0] = d.dst(0, Ty::B32);
  d.use(exec_activemask, Cls::WarpOp);
}

void decode_elect(Decoding& d) {
  d.require_sm(90, "elect");
  need_sync(d);
  d.need(2);
  d.inst.o[0] = split_pair(d, d.op(0), Ty::B32, &d.inst.o[2]);
  d.inst.o[1] = d.src(1, Ty::B32);
  d.use(exec_elect, Cls::WarpOp);
}

void decode_redux(Decoding& d) {
  need_sync(d);
  const char* ops[] = {"add", "min", "max", "and", "or", "xor"};
  int op = -1;
  for (int k = 0; k < 6; ++k)
    if (d.take(ops[k])) op = k;
  Ty type = d.take_type();
  if (op < 0 || (type != Ty::U32 && type != Ty::S32 && type != Ty::B32)) d.unsupported("this redux");
  d.need(3);
  d.inst.sub = static_cast<u8>(op), d.inst.width[0] = type == Ty::S32;
  d.inst.o[0] = d.dst(0, type), d.inst.o[1] = d.src(1, type), d.inst.o[2] = d.src(2, Ty::B32);
  d.use(exec_redux, Cls::WarpOp);
}

}  // namespace

void add_warp_ops(OpTable& t) {
  t["shfl"] = decode_shfl;
  t["vote"] = decode_vote;
  t["match"] = decode_match;
  t["activemask"] = decode_activemask;
  t["elect"] = decode_elect;
  t["redux"] = decode_redux;
}

}  // namespace ptxsim
