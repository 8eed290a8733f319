// SPDX-License-Identifier: Apache-2.0
// setp, set, selp, slct.
#include "ops_shared.hpp"

namespace ptxsim {
namespace {

enum Cmp : u8 { EQ, NE, LT, LE, GT, GE, EQU, NEU, LTU, LEU, GTU, GEU, NUM, NAN_ };
constexpr const char* kCmpNames[] = {"eq",  "ne",  "lt",  "le",  "gt",  "ge",  "equ",
                                     "neu", "ltu", "leu", "gtu", "geu", "num", "nan"};

// C++ comparisons of NaN are false except !=, so ordered forms are plain and unordered forms are negations.
template <Cmp kCmp>
struct Compare {
  template <class T>
  static bool f(T a, T b) {
    switch (kCmp) {
      case EQ:
        return a == b;
      case NE:
        return std::is_floating_point_v<T> ? (a < b || a > b) : a != b;
      case LT:
        return a < b;
      case LE:
        return a <= b;
      case GT:
        return a > b;
      case GE:
        return a >= b;
      case EQU:
        return !(a < b || a > b);
      case NEU:
        return a != b;
      case LTU:
        return !(a >= b);
      case LEU:
        return !(a > b);
      case GTU:
        return !(a <= b);
      case GEU:
        return !(a < b);
      case NUM:
        return a == a && b == b;
      default:
        return a != a || b != b;
    }
  }
};

// How a slot becomes a comparable value.
template <class T>
struct Load {
  using Slot_ = T;
  static T get(T v) { return v; }
};
struct LoadFtz {
  using Slot_ = float;
  static float get(float v) { return flush(v); }
};
struct LoadF16 {
  using Slot_ = u16;
  static float get(u16 v) { return half_to_float(v); }
};
struct LoadF16Ftz {
  using Slot_ = u16;
  static float get(u16 v) { return half_to_float((v & 0x7c00) ? v : v & 0x8000); }
};
struct LoadBf16 {
  using Slot_ = u16;
  static float get(u16 v) { return bf16_to_float(v); }
};

template <class L, Cmp kCmp>
u32 compare_mask(Warp& w, const Inst& i) {
  In<typename L::Slot_> a(w, i.o[2]), b(w, i.o[3]);
  return lane_mask([&](int l) { return Compare<kCmp>::f(L::get(a[l]), L::get(b[l])); });
}

using MaskFn = u32 (*)(Warp&, const Inst&);

template <class L>
MaskFn by_compare(Cmp cmp) {
  constexpr MaskFn table[] = {compare_mask<L, EQ>,  compare_mask<L, NE>,  compare_mask<L, LT>,  compare_mask<L, LE>,
                              compare_mask<L, GT>,  compare_mask<L, GE>,  compare_mask<L, EQU>, compare_mask<L, NEU>,
                              compare_mask<L, LTU>, compare_mask<L, LEU>, compare_mask<L, GTU>, compare_mask<L, GEU>,
                              compare_mask<L, NUM>, compare_mask<L, NAN_>};
  return table[cmp];
}

MaskFn by_type(Ty type, Cmp cmp, bool ftz) {
  switch (type) {
    case Ty::B16:
    case Ty::U16:
      return by_compare<Load<u16>>(cmp);
    case Ty::B32:
    case Ty::U32:
      return by_compare<Load<u32>>(cmp);
    case Ty::B64:
    case Ty::U64:
      return by_compare<Load<u64>>(cmp);
    case Ty::S16:
      return by_compare<Load<i16>>(cmp);
    case Ty::S32:
      return by_compare<Load<i32>>(cmp);
    case Ty::S64:
      return by_compare<Load<i64>>(cmp);
    case Ty::F32:
      return ftz ? by_compare<LoadFtz>(cmp) : by_compare<Load<float>>(cmp);
    case Ty::F64:
      return by_compare<Load<double>>(cmp);
    case Ty::F16:
      return ftz ? by_compare<LoadF16Ftz>(cmp) : by_compare<LoadF16>(cmp);
    case Ty::BF16:
      return by_compare<LoadBf16>(cmp);
    default:
      return nullptr;
  }
}

// The mask function travels in imm.
u32 masked_compare(Warp& w, const Inst& i) { return reinterpret_cast<MaskFn>(i.imm)(w, i); }

// sub: 0 none, 1 and, 2 or, 3 xor with predicate o[4].
u32 combine(Warp& w, const Inst& i, u32 r) {
  if (!i.sub) return r;
  u32 c = read_pred(w, i, i.o[4], 4);
  return i.sub == 1 ? r & c : i.sub == 2 ? r | c : r ^ c;
}

void exec_setp(Warp& w, const Inst& i, u32 m) {
  u32 r = masked_compare(w, i);
  u32 first = combine(w, i, r), second = combine(w, i, ~r);
  set_pred(w, i.o[0], first, m);
  if (i.o[1] != kPredSink) set_pred(w, i.o[1], second, m);
}

template <class L, Cmp kCmp>
void compare_pair(Warp& w, const Inst& i, u32* low, u32* high) {
  In<u32> a(w, i.o[2]), b(w, i.o[3]);
  *low = lane_mask([&](int l) { return Compare<kCmp>::f(L::get(u16(a[l])), L::get(u16(b[l]))); });
  *high = lane_mask([&](int l) { return Compare<kCmp>::f(L::get(u16(a[l] >> 16)), L::get(u16(b[l] >> 16))); });
}

using PairFn = void (*)(Warp&, const Inst&, u32*, u32*);

template <class L>
PairFn pair_by_compare(Cmp cmp) {
  constexpr PairFn table[] = {compare_pair<L, EQ>,  compare_pair<L, NE>,  compare_pair<L, LT>,  compare_pair<L, LE>,
                              compare_pair<L, GT>,  compare_pair<L, GE>,  compare_pair<L, EQU>, compare_pair<L, NEU>,
                              compare_pair<L, LTU>, compare_pair<L, LEU>, compare_pair<L, GTU>, compare_pair<L, GEU>,
                              compare_pair<L, NUM>, compare_pair<L, NAN_>};
  return table[cmp];
}

// f16x2, bf16x2: the first predicate is for the low halves, the second for the high ones.
void exec_setp_pair(Warp& w, const Inst& i, u32 m) {
  u32 low, high;
  reinterpret_cast<PairFn>(i.imm)(w, i, &low, &high);
  low = combine(w, i, low), high = combine(w, i, high);
  set_pred(w, i.o[0], low, m);
  set_pred(w, i.o[1], high, m);
}

// What set writes for true. width[0]: destination bits; width[1]: 1 f32, 2 f16, 3 bf16, 0 an integer.
u32 set_value(const Inst& i) {
  constexpr u32 kOne[] = {0, 0x3f800000u, 0x3c00u, 0x3f80u};
  return i.width[1] ? kOne[i.width[1]] : i.width[0] == 16 ? 0xffffu : kFullMask;
}

void exec_set(Warp& w, const Inst& i, u32 m) {
  u32 r = combine(w, i, masked_compare(w, i)), yes = set_value(i);
  lanes<u32>(w, i.o[0], m, [&](int l) { return (r >> l & 1) ? yes : 0u; });
}

void exec_set_pair(Warp& w, const Inst& i, u32 m) {
  u32 low, high, yes = set_value(i) & 0xffffu;
  reinterpret_cast<PairFn>(i.imm)(w, i, &low, &high);
  low = combine(w, i, low), high = combine(w, i, high);
  lanes<u32>(w, i.o[0], m, [&](int l) { return ((low >> l & 1) ? yes : 0u) | ((high >> l & 1) ? yes << 16 : 0u); });
}

template <class T>
void exec_selp(Warp& w, const Inst& i, u32 m) {
  const T* a = slot_ptr<T>(w, i.o[1]);
  const T* b = slot_ptr<T>(w, i.o[2]);
  u32 p = read_pred(w, i, i.o[3], 3);
  lanes<T>(w, i.o[0], m, [&](int l) { return (p >> l & 1) ? a[l] : b[l]; });
}

// slct: o[3] >= 0 selects o[1]. -0 counts as >= 0, NaN does not.
template <class T>
void exec_slct(Warp& w, const Inst& i, u32 m) {
  const T* a = slot_ptr<T>(w, i.o[1]);
  const T* b = slot_ptr<T>(w, i.o[2]);
  In<float> f(w, i.o[3]);
  In<i32> s(w, i.o[3]);
  bool is_f32 = i.sub & 1, ftz = i.sub & 2;
  each_lane<T>(w, i.o[0], m, [&](int l) {
    bool first = is_f32 ? (ftz ? flush(f[l]) : f[l]) >= 0.0f : s[l] >= 0;
    return first ? a[l] : b[l];
  });
}

bool take_compare(Decoding& d, bool integer, Cmp* out) {
  for (int k = 0; k < 14; ++k)
    if (d.take(kCmpNames[k])) return *out = static_cast<Cmp>(k), true;
  if (!integer) return false;
  const std::pair<const char*, Cmp> unsigned_names[] = {{"lo", LT}, {"ls", LE}, {"hi", GT}, {"hs", GE}};
  for (auto& row : unsigned_names)
    if (d.take(row.first)) return *out = row.second, true;
  return false;
}

void read_bool_op(Decoding& d) {
  std::string op = d.take_any({"and", "or", "xor"});
  d.inst.sub = op == "and" ? 1 : op == "or" ? 2 : op == "xor" ? 3 : 0;
}

// Sources from operand `first` on: a, b and, with a boolean operation, c.
void compare_sources(Decoding& d, size_t first, Ty type) {
  d.need(d.inst.sub ? first + 3 : first + 2);
  d.inst.o[2] = d.src(first, type), d.inst.o[3] = d.src(first + 1, type);
  if (d.inst.sub) d.inst.o[4] = d.pred_src(d.op(first + 2), 4);
}

void bind_compare(Decoding& d, Ty type, Cmp cmp, bool ftz, ExecFn plain, ExecFn pair) {
  if (type == Ty::BF16 || type == Ty::BF16x2) d.require_sm(90, d.raw.opcode + " of bf16");
  if (ftz && type != Ty::F32 && type != Ty::F16 && type != Ty::F16x2) d.unsupported(".ftz for this type");
  if (type == Ty::F16x2 || type == Ty::BF16x2) {
    PairFn fn = type == Ty::BF16x2 ? pair_by_compare<LoadBf16>(cmp)
                : ftz              ? pair_by_compare<LoadF16Ftz>(cmp)
                                   : pair_by_compare<LoadF16>(cmp);
    d.inst.imm = reinterpret_cast<i64>(fn);
    return d.use(pair, Cls::Alu);
  }
  MaskFn fn = by_type(type, cmp, ftz);
  if (!fn) d.unsupported(d.raw.opcode + " for ." + type_name(type));
  d.inst.imm = reinterpret_cast<i64>(fn);
  d.use(plain, Cls::Alu);
}

void decode_setp(Decoding& d) {
  read_bool_op(d);
  bool ftz = d.take("ftz");
  Ty type = d.take_type();
  Cmp cmp;
  if (!take_compare(d, !is_float(type), &cmp)) d.unsupported("this comparison");
  compare_sources(d, 1, type);
  const Operand& dst = d.op(0);
  bool pair = dst.kind == Operand::Pair;
  d.inst.o[0] = d.pred_dst(pair ? dst.elems[0] : dst);
  d.inst.o[1] = pair ? d.pred_dst(dst.elems[1]) : kPredSink;
  bind_compare(d, type, cmp, ftz, exec_setp, exec_setp_pair);
}

void decode_set(Decoding& d) {
  read_bool_op(d);
  bool ftz = d.take("ftz");
  Ty to = d.take_type(), from = d.take_type();
  Cmp cmp;
  if (!take_compare(d, !is_float(from), &cmp)) d.unsupported("this comparison");
  compare_sources(d, 1, from);
  d.inst.o[0] = d.dst(0, to);
  d.inst.width[0] = static_cast<u8>(type_bytes(to) * 8);
  d.inst.width[1] = to == Ty::F32                          ? 1
                    : (to == Ty::F16 || to == Ty::F16x2)   ? 2
                    : (to == Ty::BF16 || to == Ty::BF16x2) ? 3
                                                           : 0;
  if (type_bytes(to) > 4) d.unsupported("a 64-bit set");
  bind_compare(d, from, cmp, ftz, exec_set, exec_set_pair);
}

void decode_selp(Decoding& d) {
  Ty type = d.take_type();
  d.need(4);
  d.inst.o[0] = d.dst(0, type), d.inst.o[1] = d.src(1, type), d.inst.o[2] = d.src(2, type);
  d.inst.o[3] = d.pred_src(d.op(3), 3);
  d.use(type_bytes(type) == 8 ? exec_selp<u64> : exec_selp<u32>, Cls::Alu);
}

void decode_slct(Decoding& d) {
  bool ftz = d.take("ftz");
  Ty type = d.take_type(), selector = d.take_type();
  if (selector != Ty::S32 && selector != Ty::F32) d.unsupported("slct selected by this type");
  d.need(4);
  d.inst.o[0] = d.dst(0, type), d.inst.o[1] = d.src(1, type), d.inst.o[2] = d.src(2, type);
  d.inst.o[3] = d.src(3, selector);
  d.inst.sub = static_cast<u8>((selector == Ty::F32 ? 1 : 0) | (ftz ? 2 : 0));
  d.use(type_bytes(type) == 8 ? exec_slct<u64> : exec_slct<u32>, Cls::Alu);
}

}  // namespace

void add_compare_ops(OpTable& t) {
  t["setp"] = decode_setp;
  t["set"] = decode_set;
  t["selp"] = decode_selp;
  t["slct"] = decode_slct;
}

}  // namespace ptxsim
