// SPDX-License-Identifier: Apache-2.0
// Integer arithmetic of one width: add, sub, mul.lo/.hi, mad, div, rem, min, max, abs, neg, sad, carry chains,
// packed 16-bit min/max/add. Opcodes that also exist for floats are forwarded to the float families by type.
#include "ops_shared.hpp"

namespace ptxsim {
namespace {

template <class T>
using U = std::make_unsigned_t<T>;

// Products are taken in unsigned (at least 32-bit) arithmetic: signed overflow is undefined in C++.
template <class T>
inline T mul_lo(T a, T b) {
  return static_cast<T>(static_cast<std::common_type_t<U<T>, u32>>(a) * static_cast<std::common_type_t<U<T>, u32>>(b));
}
template <class T>
inline T mul_hi(T a, T b) {
  if constexpr (sizeof(T) == 8) {
    using Wide = std::conditional_t<std::is_signed_v<T>, __int128, unsigned __int128>;
    return static_cast<T>((static_cast<Wide>(a) * static_cast<Wide>(b)) >> 64);
  } else {
    using Wide = std::conditional_t<std::is_signed_v<T>, i64, u64>;
    return static_cast<T>((static_cast<Wide>(a) * static_cast<Wide>(b)) >> (8 * sizeof(T)));
  }
}

struct Add {
  template <class T>
  static T f(T a, T b) {
    return static_cast<T>(U<T>(a) + U<T>(b));
  }
};
struct Sub {
  template <class T>
  static T f(T a, T b) {
    return static_cast<T>(U<T>(a) - U<T>(b));
  }
};
struct Min {
  template <class T>
  static T f(T a, T b) {
    return a < b ? a : b;
  }
};
struct Max {
  template <class T>
  static T f(T a, T b) {
    return a > b ? a : b;
  }
};
struct MinRelu {
  template <class T>
  static T f(T a, T b) {
    T r = a < b ? a : b;
    return r > 0 ? r : T(0);
  }
};
struct MaxRelu {
  template <class T>
  static T f(T a, T b) {
    T r = a > b ? a : b;
    return r > 0 ? r : T(0);
  }
};
struct MulLo {
  template <class T>
  static T f(T a, T b) {
    return mul_lo(a, b);
  }
};
struct MulHi {
  template <class T>
  static T f(T a, T b) {
    return mul_hi(a, b);
  }
};
struct MadLo {
  template <class T>
  static T f(T a, T b, T c) {
    return Add::f(mul_lo(a, b), c);
  }
};
struct MadHi {
  template <class T>
  static T f(T a, T b, T c) {
    return Add::f(mul_hi(a, b), c);
  }
};
// Division by zero is undefined in PTX; all ones is what the hardware's sequence gives.
struct Div {
  template <class T>
  static T f(T a, T b) {
    if (b == 0) return static_cast<T>(~U<T>(0));
    if constexpr (std::is_signed_v<T>)
      if (b == T(-1)) return static_cast<T>(U<T>(0) - U<T>(a));
    return static_cast<T>(a / b);
  }
};
struct Rem {
  template <class T>
  static T f(T a, T b) {
    if (b == 0) return a;
    if constexpr (std::is_signed_v<T>)
      if (b == T(-1)) return 0;
    return static_cast<T>(a % b);
  }
};
struct Abs {
  template <class T>
  static T f(T a) {
    return a < 0 ? static_cast<T>(U<T>(0) - U<T>(a)) : a;
  }
};
struct Neg {
  template <class T>
  static T f(T a) {
    return static_cast<T>(U<T>(0) - U<T>(a));
  }
};
struct Sad {
  template <class T>
  static T f(T a, T b, T c) {
    return Add::f(c, a < b ? Sub::f(b, a) : Sub::f(a, b));
  }
};
struct AddSat {
  static i32 f(i32 a, i32 b) {
    i64 r = i64(a) + b;
    return i32(r > INT32_MAX ? INT32_MAX : r < INT32_MIN ? INT32_MIN : r);
  }
};
struct SubSat {
  static i32 f(i32 a, i32 b) {
    i64 r = i64(a) - b;
    return i32(r > INT32_MAX ? INT32_MAX : r < INT32_MIN ? INT32_MIN : r);
  }
};
struct MadHiSat {
  static i32 f(i32 a, i32 b, i32 c) { return AddSat::f(mul_hi(a, b), c); }
};
struct Mul24Lo {
  template <class T>
  static T f(T a, T b) {
    return static_cast<T>(sx(a) * sx(b));
  }
  static i64 sx(i32 v) { return static_cast<i32>(static_cast<u32>(v) << 8) >> 8; }
  static u64 sx(u32 v) { return v & 0xffffffu; }
};
struct Mul24Hi {
  template <class T>
  static T f(T a, T b) {
    return static_cast<T>(Mul24Lo::sx(a) * Mul24Lo::sx(b) >> 16);
  }
};
struct Mad24Lo {
  template <class T>
  static T f(T a, T b, T c) {
    return Add::f(Mul24Lo::f(a, b), c);
  }
};
struct Mad24Hi {
  template <class T>
  static T f(T a, T b, T c) {
    return Add::f(Mul24Hi::f(a, b), c);
  }
};

template <class T, class F>
struct Packed {
  static u32 f(u32 a, u32 b) {
    u32 low = static_cast<u16>(F::f(static_cast<T>(a), static_cast<T>(b)));
    u32 high = static_cast<u16>(F::f(static_cast<T>(a >> 16), static_cast<T>(b >> 16)));
    return low | high << 16;
  }
};

template <class F>
ExecFn for_ints1(Ty t) {
  switch (t) {
    case Ty::S16:
      return run1<i16, i16, F>;
    case Ty::S32:
      return run1<i32, i32, F>;
    case Ty::S64:
      return run1<i64, i64, F>;
    default:
      return nullptr;
  }
}
template <class F>
ExecFn for_ints2(Ty t) {
  switch (t) {
    case Ty::U16:
      return run2<u16, u16, F>;
    case Ty::S16:
      return run2<i16, i16, F>;
    case Ty::U32:
      return run2<u32, u32, F>;
    case Ty::S32:
      return run2<i32, i32, F>;
    case Ty::U64:
      return run2<u64, u64, F>;
    case Ty::S64:
      return run2<i64, i64, F>;
    case Ty::U16x2:
      return run2<u32, u32, Packed<u16, F>>;
    case Ty::S16x2:
      return run2<u32, u32, Packed<i16, F>>;
    default:
      return nullptr;
  }
}
template <class F>
ExecFn for_ints3(Ty t) {
  switch (t) {
    case Ty::U16:
      return run3<u16, u16, F>;
    case Ty::S16:
      return run3<i16, i16, F>;
    case Ty::U32:
      return run3<u32, u32, F>;
    case Ty::S32:
      return run3<i32, i32, F>;
    case Ty::U64:
      return run3<u64, u64, F>;
    case Ty::S64:
      return run3<i64, i64, F>;
    default:
      return nullptr;
  }
}

// Carry chains: the condition code is one bit per lane, kept as a predicate. sub: 0 add, 1 sub, 2 mad.lo, 3 mad.hi;
// vec bit 0: writes CC, bit 1: reads CC.
template <class T>
void exec_carry(Warp& w, const Inst& i, u32 m) {
  using Wide = std::conditional_t<sizeof(T) == 4, u64, unsigned __int128>;
  In<T> a(w, i.o[1]), b(w, i.o[2]), c(w, i.o[3]);
  u32 carry = 0, before = i.vec & 2 ? w.preds[kPredCarry] : 0;
  each_lane<T>(w, i.o[0], m, [&](int l) {
    Wide in = before >> l & 1, r;
    if (i.sub == 0)
      r = Wide(a[l]) + b[l] + in;
    else if (i.sub == 1)
      r = Wide(a[l]) - b[l] - in;
    else
      r = (i.sub == 2 ? Wide(T(a[l] * b[l])) : Wide(mul_hi<T>(a[l], b[l]))) + c[l] + in;
    if (r >> (8 * sizeof(T)) & 1) carry |= 1u << l;
    return static_cast<T>(r);
  });
  if (i.vec & 1) set_pred(w, kPredCarry, carry, m);
}

void exec_mad_hi_signed_carry(Warp& w, const Inst& i, u32 m) {
  In<i32> a(w, i.o[1]), b(w, i.o[2]);
  In<u32> c(w, i.o[3]);
  u32 carry = 0, before = i.vec & 2 ? w.preds[kPredCarry] : 0;
  each_lane<u32>(w, i.o[0], m, [&](int l) {
    u64 r = u64(u32(mul_hi<i32>(a[l], b[l]))) + c[l] + (before >> l & 1);
    if (r >> 32 & 1) carry |= 1u << l;
    return static_cast<u32>(r);
  });
  if (i.vec & 1) set_pred(w, kPredCarry, carry, m);
}

void bind(Decoding& d, Ty type, ExecFn fn, size_t sources, Cls cls = Cls::Alu) {
  if (!fn) d.unsupported(d.raw.opcode + " for ." + type_name(type));
  d.need(sources + 1);
  d.inst.o[0] = d.dst(0, type);
  for (size_t k = 1; k <= sources; ++k) d.inst.o[k] = d.src(k, type);
  d.use(fn, cls);
}

void decode_carry(Decoding& d, u8 kind, bool reads) {
  bool writes = d.take("cc");
  Ty type = d.take_type();
  bool wide = type == Ty::U64 || type == Ty::S64 || type == Ty::B64;
  if (!wide && type != Ty::U32 && type != Ty::S32 && type != Ty::B32) d.unsupported("carry for this type");
  d.inst.sub = kind;
  d.inst.vec = static_cast<u8>((writes ? 1 : 0) | (reads ? 2 : 0));
  ExecFn fn = wide ? exec_carry<u64> : exec_carry<u32>;
  if (kind == 3 && type == Ty::S32) fn = exec_mad_hi_signed_carry;
  if (kind == 3 && type == Ty::S64) d.unsupported("mad.hi with carry for .s64");
  bind(d, type, fn, kind >= 2 ? 3 : 2);
}

bool is_packed(Ty t) { return t == Ty::U16x2 || t == Ty::S16x2; }

bool has_mod(const Decoding& d, const char* mod) {
  for (const std::string& m : d.raw.mods)
    if (m == mod) return true;
  return false;
}

void decode_add(Decoding& d) {
  Ty type = d.peek_type();
  if (is_float(type)) return decode_float_arith(d);
  bool add = d.raw.opcode == "add";
  if (is_packed(type)) d.require_sm(90, "packed 16-bit add");
  if (has_mod(d, "cc")) return decode_carry(d, add ? 0 : 1, false);
  d.take_type();
  if (d.take("sat")) {
    if (type != Ty::S32) d.unsupported(".sat for this type");
    return bind(d, type, add ? run2<i32, i32, AddSat> : run2<i32, i32, SubSat>, 2);
  }
  bind(d, type, add ? for_ints2<Add>(type) : for_ints2<Sub>(type), 2);
}

void decode_mul(Decoding& d) {
  Ty type = d.peek_type();
  if (is_float(type)) return decode_float_arith(d);
  if (d.take("wide")) return decode_wide(d);
  d.take_type();
  std::string half = d.take_any({"lo", "hi"});
  if (half.empty()) d.unsupported("mul without .lo, .hi or .wide");
  bind(d, type, half == "lo" ? for_ints2<MulLo>(type) : for_ints2<MulHi>(type), 2);
}

void decode_mad(Decoding& d) {
  Ty type = d.peek_type();
  if (is_float(type)) return decode_float_arith(d);
  if (d.take("wide")) return decode_wide(d);
  std::string half = d.take_any({"lo", "hi"});
  if (half.empty()) d.unsupported("mad without .lo, .hi or .wide");
  if (d.raw.opcode == "madc" || has_mod(d, "cc")) return decode_carry(d, half == "lo" ? 2 : 3, d.raw.opcode == "madc");
  d.take_type();
  if (d.take("sat")) {
    if (type != Ty::S32 || half != "hi") d.unsupported(".sat for this mad");
    return bind(d, type, run3<i32, i32, MadHiSat>, 3);
  }
  bind(d, type, half == "lo" ? for_ints3<MadLo>(type) : for_ints3<MadHi>(type), 3);
}

void decode_24(Decoding& d) {
  Ty type = d.take_type();
  bool low = d.take("lo"), mul = d.raw.opcode == "mul24", is_signed32 = type == Ty::S32;
  if (!low && !d.take("hi")) d.unsupported(d.raw.opcode + " without .lo or .hi");
  if (!is_signed32 && type != Ty::U32) d.unsupported(d.raw.opcode + " for this type");
  if (mul && is_signed32) return bind(d, type, low ? run2<i32, i32, Mul24Lo> : run2<i32, i32, Mul24Hi>, 2);
  if (mul) return bind(d, type, low ? run2<u32, u32, Mul24Lo> : run2<u32, u32, Mul24Hi>, 2);
  if (is_signed32) return bind(d, type, low ? run3<i32, i32, Mad24Lo> : run3<i32, i32, Mad24Hi>, 3);
  bind(d, type, low ? run3<u32, u32, Mad24Lo> : run3<u32, u32, Mad24Hi>, 3);
}

void decode_min_max(Decoding& d) {
  Ty type = d.peek_type();
  if (is_float(type)) return decode_float_min_max(d);
  d.take_type();
  bool min = d.raw.opcode == "min";
  if (is_packed(type)) d.require_sm(90, "packed 16-bit min and max");
  if (d.take("relu")) {
    d.require_sm(90, ".relu of integers");
    if (type != Ty::S32 && type != Ty::S16x2) d.unsupported(".relu for this type");
    return bind(d, type, min ? for_ints2<MinRelu>(type) : for_ints2<MaxRelu>(type), 2);
  }
  bind(d, type, min ? for_ints2<Min>(type) : for_ints2<Max>(type), 2);
}

void decode_div(Decoding& d) {
  Ty type = d.peek_type();
  if (is_float(type)) return decode_float_div(d);
  d.take_type();
  if (type == Ty::U16x2 || type == Ty::S16x2) d.unsupported("packed division");
  bind(d, type, d.raw.opcode == "div" ? for_ints2<Div>(type) : for_ints2<Rem>(type), 2);
}

void decode_abs_neg(Decoding& d) {
  Ty type = d.peek_type();
  if (is_float(type)) return decode_float_abs_neg(d);
  d.take_type();
  bind(d, type, d.raw.opcode == "abs" ? for_ints1<Abs>(type) : for_ints1<Neg>(type), 1);
}

void decode_sad(Decoding& d) {
  Ty type = d.take_type();
  bind(d, type, for_ints3<Sad>(type), 3);
}

}  // namespace

void add_integer_ops(OpTable& t) {
  t["add"] = t["sub"] = decode_add;
  t["addc"] = [](Decoding& d) { decode_carry(d, 0, true); };
  t["subc"] = [](Decoding& d) { decode_carry(d, 1, true); };
  t["mul"] = decode_mul;
  t["mad"] = t["madc"] = decode_mad;
  t["mul24"] = t["mad24"] = decode_24;
  t["min"] = t["max"] = decode_min_max;
  t["div"] = t["rem"] = decode_div;
  t["abs"] = t["neg"] = decode_abs_neg;
  t["sad"] = decode_sad;
}

}  // namespace ptxsim
