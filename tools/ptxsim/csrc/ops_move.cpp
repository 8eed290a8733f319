// SPDX-License-Identifier: Apache-2.0
// mov (scalars, packing, unpacking, clocks), cvta, isspacep.
#include <chrono>

#include "ops_shared.hpp"

namespace ptxsim {
namespace {

template <class T>
void exec_mov(Warp& w, const Inst& i, u32 m) {
  const T* a = slot_ptr<T>(w, i.o[1]);
  T* d = slot_ptr<T>(w, i.o[0]);
  if (m == kFullMask)
    std::memcpy(d, a, sizeof(T) * kLanes);
  else
    blend(d, a, m);
}

void exec_mov_pred(Warp& w, const Inst& i, u32 m) { set_pred(w, i.o[0], read_pred(w, i, i.o[1], 1), m); }

// ext: element slots. sub: elements; bytes: bits per element.
void exec_pack(Warp& w, const Inst& i, u32 m) {
  u32 total = i.sub * i.bytes;
  for (u32 left = m; left; left &= left - 1) {
    int l = __builtin_ctz(left);
    u64 r = 0;
    for (u32 k = 0; k < i.sub; ++k) r |= static_cast<u64>(w.r32(i.ext[k])[l]) << (k * i.bytes);
    if (total == 64)
      w.r64(i.o[0])[l] = r;
    else
      w.r32(i.o[0])[l] = static_cast<u32>(r);
  }
}

void exec_pack2x16(Warp& w, const Inst& i, u32 m) {
  In<u32> a(w, i.ext[0]), b(w, i.ext[1]);
  lanes<u32>(w, i.o[0], m, [&](int l) { return a[l] | b[l] << 16; });
}

void exec_pack2x32(Warp& w, const Inst& i, u32 m) {
  In<u32> a(w, i.ext[0]), b(w, i.ext[1]);
  lanes<u64>(w, i.o[0], m, [&](int l) { return a[l] | static_cast<u64>(b[l]) << 32; });
}

void exec_unpack(Warp& w, const Inst& i, u32 m) {
  u32 total = i.sub * i.bytes;
  u64 mask = (1ull << i.bytes) - 1;
  for (u32 left = m; left; left &= left - 1) {
    int l = __builtin_ctz(left);
    u64 value = total == 64 ? w.r64(i.o[1])[l] : w.r32(i.o[1])[l];
    for (u32 k = 0; k < i.sub; ++k) w.r32(i.ext[k])[l] = static_cast<u32>(value >> (k * i.bytes) & mask);
  }
}

void exec_unpack2x16(Warp& w, const Inst& i, u32 m) {
  In<u32> a(w, i.o[1]);
  lanes<u32>(w, i.ext[0], m, [&](int l) { return a[l] & 0xffff; });
  lanes<u32>(w, i.ext[1], m, [&](int l) { return a[l] >> 16; });
}

void exec_unpack2x32(Warp& w, const Inst& i, u32 m) {
  In<u64> a(w, i.o[1]);
  lanes<u32>(w, i.ext[0], m, [&](int l) { return static_cast<u32>(a[l]); });
  lanes<u32>(w, i.ext[1], m, [&](int l) { return static_cast<u32>(a[l] >> 32); });
}

// 128-bit registers: 32 lanes of low halves, then 32 lanes of high halves.
void exec_mov128(Warp& w, const Inst& i, u32 m) {
  for (u32 part = 0; part < 2; ++part) blend(w.r64(i.o[0] + 64 * part), w.r64(i.o[1] + 64 * part), m);
}
void exec_pack128(Warp& w, const Inst& i, u32 m) {
  for (u32 part = 0; part < 2; ++part) blend(w.r64(i.o[0] + 64 * part), w.r64(i.ext[part]), m);
}
void exec_unpack128(Warp& w, const Inst& i, u32 m) {
  for (u32 part = 0; part < 2; ++part) blend(w.r64(i.ext[part]), w.r64(i.o[1] + 64 * part), m);
}

// Clocks: the simulator has no time; they tick with the instructions of this launch's worker and the host's clock.
void exec_clock(Warp& w, const Inst& i, u32 m) {
  u64 now = static_cast<u64>(std::chrono::steady_clock::now().time_since_epoch().count());
  if (i.sub == 1) now >>= 32;
  for (u32 left = m; left; left &= left - 1) {
    int l = __builtin_ctz(left);
    if (i.width[0] == 64)
      w.r64(i.o[0])[l] = now;
    else
      w.r32(i.o[0])[l] = static_cast<u32>(now);
  }
}

bool decode_clock(Decoding& d, Ty type) {
  Special special;
  int width = 32;
  if (d.op(1).kind != Operand::Special || !special_from_name(d.op(1).name, &special, &width) || !is_dynamic(special))
    return false;
  d.inst.o[0] = d.dst(0, type);
  d.inst.width[0] = static_cast<u8>(type_bytes(type) * 8);
  d.inst.sub = special == Special::ClockHi || special == Special::GlobaltimerHi;
  d.use(exec_clock, Cls::Other);
  return true;
}

u32 element_slot(Decoding& d, const Operand& e, Ty type, bool is_dst) {
  return is_dst ? d.dst(e, type) : d.src(e, type);
}

// mov.b64 {a,b}, c or mov.b64 c, {a,b}
void decode_vector(Decoding& d, Ty type) {
  bool unpack = d.op(0).kind == Operand::Vector;
  const Operand& vec = d.op(unpack ? 0 : 1);
  u32 n = static_cast<u32>(vec.elems.size()), total = static_cast<u32>(type_bytes(type)) * 8;
  if (!n || total % n) d.malformed("vector of this length");
  u32 bits = total / n;
  if (bits < 8 || (bits == 8 && n > 4)) d.malformed("vector of this length");
  Ty element = bits == 64 ? Ty::B64 : bits == 32 ? Ty::B32 : bits == 16 ? Ty::B16 : Ty::B8;
  std::vector<u32> slots;
  for (const Operand& e : vec.elems) slots.push_back(element_slot(d, e, element, unpack));
  d.inst.ext = d.builder.keep(slots);
  d.inst.sub = static_cast<u8>(n), d.inst.bytes = static_cast<u8>(bits);
  if (unpack)
    d.inst.o[1] = d.src(1, type);
  else
    d.inst.o[0] = d.dst(0, type);
  ExecFn fn = unpack ? exec_unpack : exec_pack;
  if (n == 2 && bits == 16) fn = unpack ? exec_unpack2x16 : exec_pack2x16;
  if (n == 2 && bits == 32) fn = unpack ? exec_unpack2x32 : exec_pack2x32;
  if (total == 128) fn = n != 2 ? nullptr : unpack ? exec_unpack128 : exec_pack128;
  d.use(fn, Cls::Mov);
}

void decode_mov(Decoding& d) {
  Ty type = d.take_type();
  d.need(2);
  if (type == Ty::Pred) {
    d.inst.o[0] = d.pred_dst(d.op(0)), d.inst.o[1] = d.pred_src(d.op(1), 1);
    return d.use(exec_mov_pred, Cls::Mov);
  }
  if (d.op(0).kind == Operand::Vector || d.op(1).kind == Operand::Vector) return decode_vector(d, type);
  if (decode_clock(d, type)) return;
  d.inst.o[0] = d.dst(0, type), d.inst.o[1] = d.src(1, type);
  int bytes = type_bytes(type);
  d.use(bytes == 16 ? exec_mov128 : bytes == 8 ? exec_mov<u64> : exec_mov<u32>, Cls::Mov);
}

void exec_add_constant(Warp& w, const Inst& i, u32 m) {
  In<u64> a(w, i.o[1]);
  u64 c = static_cast<u64>(i.imm);
  lanes<u64>(w, i.o[0], m, [&](int l) { return a[l] + c; });
}

u64 window_of(Space space) { return space == Space::Shared ? kSharedWindow : space == Space::Local ? kLocalWindow : 0; }

Space take_space(Decoding& d) {
  struct {
    const char* mod;
    Space space;
  } rows[] = {{"shared", Space::Shared},     {"shared::cta", Space::Shared}, {"local", Space::Local},
              {"global", Space::Global},     {"const", Space::Const},        {"param", Space::Param},
              {"param::entry", Space::Param}};
  for (auto& row : rows)
    if (d.take(row.mod)) return row.space;
  d.unsupported(d.raw.opcode + " of this state space");
}

void decode_cvta(Decoding& d) {
  bool to = d.take("to");
  Space space = take_space(d);
  Ty type = d.take_type();
  if (type_bytes(type) != 8) d.unsupported("32-bit cvta");
  d.need(2);
  d.inst.o[0] = d.dst(0, Ty::U64), d.inst.o[1] = d.src(1, Ty::U64);
  u64 window = window_of(space);
  d.inst.imm = static_cast<i64>(to ? 0 - window : window);
  d.use(window ? exec_add_constant : exec_mov<u64>, Cls::Alu);
}

void exec_isspacep(Warp& w, const Inst& i, u32 m) {
  In<u64> a(w, i.o[1]);
  u64 window = static_cast<u64>(i.imm);
  u32 r = lane_mask([&](int l) { return window ? a[l] - window < kWindowBytes : a[l] < kSharedWindow; });
  set_pred(w, i.o[0], r, m);
}

void decode_isspacep(Decoding& d) {
  Space space = take_space(d);
  if (space == Space::Const || space == Space::Param) d.unsupported("isspacep of const or param");
  d.need(2);
  d.inst.o[0] = d.pred_dst(d.op(0)), d.inst.o[1] = d.src(1, Ty::U64);
  d.inst.imm = static_cast<i64>(window_of(space));
  d.use(exec_isspacep, Cls::Alu);
}

// createpolicy: the policy is a hint; its value only travels to instructions that ignore it.
void exec_policy(Warp& w, const Inst& i, u32 m) {
  lanes<u64>(w, i.o[0], m, [&](int) { return u64(0); });
}
void decode_createpolicy(Decoding& d) {
  for (const char* mod :
       {"fractional", "L2::evict_last", "L2::evict_first", "L2::evict_normal", "L2::evict_unchanged", "b64"})
    d.take(mod);
  d.need(1, 2);
  d.inst.o[0] = d.dst(0, Ty::B64);
  d.use(exec_policy, Cls::Other);
}

}  // namespace

void add_move_ops(OpTable& t) {
  t["mov"] = decode_mov;
  t["cvta"] = decode_cvta;
  t["isspacep"] = decode_isspacep;
  t["createpolicy"] = decode_createpolicy;
}

}  // namespace ptxsim
