// SPDX-License-Identifier: Apache-2.0
// atom and red. Lanes are applied in lane order; global memory uses the host's atomics, so CTAs on other threads see
// whole updates.
#include "memory.hpp"
#include "ops_memory.hpp"

namespace ptxsim {
namespace {

enum AtomOp : u8 { kAnd, kOr, kXor, kExch, kCas, kAdd, kInc, kDec, kMin, kMax };
constexpr const char* kOpNames[] = {"and", "or", "xor", "exch", "cas", "add", "inc", "dec", "min", "max"};

float half_in(u16 h, bool bf16) { return bf16 ? bf16_to_float(h) : half_to_float(h); }
u16 half_out(float x, bool bf16) { return bf16 ? float_to_bf16(x) : float_to_half(x); }

u64 half_update(AtomOp op, Ty type, u64 old, u64 b) {
  bool bf16 = type == Ty::BF16 || type == Ty::BF16x2, pair = type == Ty::F16x2 || type == Ty::BF16x2;
  u64 r = 0;
  for (int k = 0; k < (pair ? 2 : 1); ++k) {
    float x = half_in(u16(old >> 16 * k), bf16), y = half_in(u16(b >> 16 * k), bf16);
    float v = op == kAdd ? x + y : (x != x ? y : y != y ? x : (op == kMin) == (x < y) ? x : y);
    r |= static_cast<u64>(half_out(v, bf16)) << 16 * k;
  }
  return r;
}

u64 float_update(AtomOp op, Ty type, u64 old, u64 b, bool flushes) {
  if (type == Ty::F64) return bit_cast<u64>(bit_cast<double>(old) + bit_cast<double>(b));
  float x = bit_cast<float>(u32(old)), y = bit_cast<float>(u32(b));
  if (flushes) x = flush(x), y = flush(y);
  float r = x + y;
  (void)op;
  return bit_cast<u32>(canonical_nan(flushes ? flush(r) : r));
}

template <class S>
u64 min_max(AtomOp op, u64 old, u64 b) {
  S x = static_cast<S>(old), y = static_cast<S>(b);
  return (op == kMin) == (x < y) ? old : b;
}

u64 update(AtomOp op, Ty type, u64 old, u64 b, u64 c, bool flushes) {
  switch (op) {
    case kAnd:
      return old & b;
    case kOr:
      return old | b;
    case kXor:
      return old ^ b;
    case kExch:
      return b;
    case kCas:
      return old == b ? c : old;
    case kInc:
      return static_cast<u32>(old) >= static_cast<u32>(b) ? 0 : old + 1;
    case kDec:
      return old == 0 || static_cast<u32>(old) > static_cast<u32>(b) ? b : old - 1;
    default:
      break;
  }
  if (is_half(type)) return half_update(op, type, old, b);
  if (is_float(type)) return float_update(op, type, old, b, flushes);
  if (op == kAdd) return old + b;
  switch (type) {
    case Ty::S32:
      return min_max<i32>(op, old, b);
    case Ty::S64:
      return min_max<i64>(op, old, b);
    case Ty::U32:
      return min_max<u32>(op, old, b);
    default:
      return min_max<u64>(op, old, b);
  }
}

template <class T>
u64 apply(u8* p, bool shared, AtomOp op, Ty type, u64 b, u64 c) {
  T* at = reinterpret_cast<T*>(p);
  if (shared) {
    T old = *at;
    *at = static_cast<T>(update(op, type, old, b, c, false));
    return old;
  }
  T old = __atomic_load_n(at, __ATOMIC_SEQ_CST);
  while (!__atomic_compare_exchange_n(at, &old, static_cast<T>(update(op, type, old, b, c, true)), false,
                                      __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
  }
  return old;
}

u64 read_slot(const Warp& w, u32 slot, u8 bytes, int l) { return bytes == 8 ? w.r64(slot)[l] : w.r32(slot)[l]; }

// sub: AtomOp; o[0] address; ext: destinations (vec, or none when width[1] is 0), then b (vec), then c.
template <Space kSpace>
void exec_atom(Warp& w, const Inst& i, u32 m) {
  u64 addresses[kLanes];
  lane_addresses(w, i, i.o[0], i.width[0], i.imm, addresses);
  AtomOp op = static_cast<AtomOp>(i.sub);
  Ty type = static_cast<Ty>(i.pneg);
  u32 first_b = i.width[1] ? i.vec : 0u;
  for (u32 left = m; left; left &= left - 1) {
    int l = __builtin_ctz(left);
    u64 address = addresses[l];
    Space space = kSpace == Space::Generic ? resolve_generic(&address) : kSpace;
    u8* p = space_ptr(w, i, l, space, address, static_cast<u32>(i.bytes) * i.vec, Access::ReadWrite);
    for (u32 k = 0; k < i.vec; ++k) {
      u64 b = read_slot(w, i.ext[first_b + k], i.bytes, l);
      u64 c = op == kCas ? read_slot(w, i.ext[first_b + 1], i.bytes, l) : 0;
      u8* at = p + k * i.bytes;
      bool shared = space != Space::Global;
      u64 old = i.bytes == 8   ? apply<u64>(at, shared, op, type, b, c)
                : i.bytes == 4 ? apply<u32>(at, shared, op, type, b, c)
                               : apply<u16>(at, shared, op, type, b, c);
      if (!i.width[1]) continue;
      if (i.bytes == 8)
        w.r64(i.ext[k])[l] = old;
      else
        w.r32(i.ext[k])[l] = static_cast<u32>(old);
    }
  }
  if (w.worker->launch->stats && kSpace == Space::Global) {
    w.worker->counters.global_access(false, addresses, m, static_cast<u32>(i.bytes) * i.vec);
    w.worker->counters.global_access(true, addresses, m, static_cast<u32>(i.bytes) * i.vec);
  }
}

bool legal(AtomOp op, Ty type) {
  bool whole = type == Ty::U32 || type == Ty::S32 || type == Ty::U64 || type == Ty::S64;
  switch (op) {
    case kAnd:
    case kOr:
    case kXor:
      return type == Ty::B32 || type == Ty::B64;
    case kExch:
      return type == Ty::B32 || type == Ty::B64;
    case kCas:
      return type == Ty::B16 || type == Ty::B32 || type == Ty::B64;
    case kInc:
    case kDec:
      return type == Ty::U32;
    case kAdd:
      return (whole && type != Ty::S64) || is_float(type) || type == Ty::S64;
    default:
      return whole || is_half(type);
  }
}

void elements(Decoding& d, const Operand& op, Ty type, bool dst, std::vector<u32>* out) {
  std::vector<Operand> elems = op.kind == Operand::Vector ? op.elems : std::vector<Operand>{op};
  if (elems.size() != d.inst.vec) d.malformed("operand of " + std::to_string(elems.size()) + " elements");
  for (const Operand& e : elems) out->push_back(dst ? d.dst(e, type) : d.src(e, type));
}

void decode_atom(Decoding& d) {
  bool red = d.raw.opcode == "red";
  if (d.take("async")) d.unsupported("red.async");
  Space space;
  take_ordering(d);
  take_space_suffix(d, &space);
  bool hint = take_cache_hints(d);
  d.take("noftz");
  int op = -1;
  for (int k = 0; k < 10 && op < 0; ++k)
    if (d.take(kOpNames[k])) op = k;
  std::string vec = d.take_any({"v2", "v4", "v8"});
  d.inst.vec = vec.empty() ? 1 : static_cast<u8>(vec[1] - '0');
  Ty type = d.take_type();
  if (op < 0 || !legal(static_cast<AtomOp>(op), type)) d.unsupported("this operation and type of " + d.raw.opcode);
  if (space == Space::Local || space == Space::Const || space == Space::Param)
    d.unsupported(d.raw.opcode + " of this state space");
  if (d.inst.vec > 1) d.require_sm(90, "vector " + d.raw.opcode);
  if (type == Ty::BF16 || type == Ty::BF16x2) d.require_sm(90, d.raw.opcode + " of bf16");
  size_t want = (red ? 2u : 3u) + (op == kCas ? 1u : 0u) + (hint ? 1u : 0u), at = red ? 0 : 1;
  d.need(want);
  d.inst.sub = static_cast<u8>(op);
  d.inst.bytes = static_cast<u8>(type_bytes(type));
  bool keeps = !red && d.op(0).kind != Operand::Sink;
  d.inst.width[1] = keeps;
  d.inst.o[0] = address_slot(d, d.op(at), &space, &d.inst.width[0]);
  std::vector<u32> slots;
  if (keeps) elements(d, d.op(0), type, true, &slots);
  elements(d, d.op(at + 1), type, false, &slots);
  if (op == kCas) slots.push_back(d.src(at + 2, type));
  d.inst.ext = d.builder.keep(slots);
  d.inst.pneg = static_cast<u32>(type);
  d.use(space == Space::Shared   ? exec_atom<Space::Shared>
        : space == Space::Global ? exec_atom<Space::Global>
                                 : exec_atom<Space::Generic>,
        Cls::Atom);
}

}  // namespace

void add_atomic_ops(OpTable& t) { t["atom"] = t["red"] = decode_atom; }

}  // namespace ptxsim
