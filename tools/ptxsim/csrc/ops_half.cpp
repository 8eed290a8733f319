// SPDX-License-Identifier: Apache-2.0
// f16, f16x2, bf16, bf16x2 arithmetic. Values are computed in f32 (sums, products: 24 bits are more than twice 11, so
// one more rounding is exact) or in a sticky double (fma) and rounded once to the format.
#include "ops_shared.hpp"

namespace ptxsim {
namespace {

struct Fp16 {
  static float load(u16 h) { return half_to_float(h); }
  static u16 store(float x) { return float_to_half(x); }
  static u16 store_exact(double x) { return static_cast<u16>(encode_float(x, kFp16, Rnd::RN, false)); }
  static u16 flush16(u16 h) { return (h & 0x7c00) ? h : h & 0x8000; }
};
struct Bf16 {
  static float load(u16 h) { return bf16_to_float(h); }
  static u16 store(float x) { return float_to_bf16(x); }
  static u16 store_exact(double x) { return static_cast<u16>(encode_float(x, kBf16, Rnd::RN, false)); }
  static u16 flush16(u16 h) { return (h & 0x7f80) ? h : h & 0x8000; }
};

// Inst::sub: 1 ftz, 2 sat, 4 relu, 8 NaN, 16 xorsign.abs.
enum : u8 { kFtz = 1, kSat = 2, kRelu = 4, kNan = 8, kAbs = 16 };

template <class H>
inline u16 finish(u16 r, u8 flags) {
  if (flags & kFtz) r = H::flush16(r);
  if (flags & kSat) r = H::store(saturate(H::load(r)));
  if (flags & kRelu) {
    float x = H::load(r);
    if (x == x && (r & 0x8000)) r = 0;
  }
  return r;
}

struct HAdd {
  template <class H>
  static u16 f(float a, float b, float) {
    return H::store(a + b);
  }
};
struct HSub {
  template <class H>
  static u16 f(float a, float b, float) {
    return H::store(a - b);
  }
};
struct HMul {
  template <class H>
  static u16 f(float a, float b, float) {
    return H::store(a * b);
  }
};
struct HFma {
  template <class H>
  static u16 f(float a, float b, float c) {
    return H::store_exact(add_round_odd(double(a) * double(b), double(c)));
  }
};

template <class H, class F, bool kThree>
inline u16 half_op(u16 a, u16 b, u16 c, u8 flags) {
  if (flags & kFtz) a = H::flush16(a), b = H::flush16(b), c = H::flush16(c);
  return finish<H>(F::template f<H>(H::load(a), H::load(b), kThree ? H::load(c) : 0.0f), flags);
}

template <class H, class F, bool kThree, bool kPair>
void exec_half(Warp& w, const Inst& i, u32 m) {
  In<u32> a(w, i.o[1]), b(w, i.o[2]), c(w, i.o[kThree ? 3 : 2]);
  u8 flags = i.sub;
  auto f = [&](int l) {
    u32 low = half_op<H, F, kThree>(u16(a[l]), u16(b[l]), u16(c[l]), flags);
    if constexpr (!kPair) return low;
    u32 high = half_op<H, F, kThree>(u16(a[l] >> 16), u16(b[l] >> 16), u16(c[l] >> 16), flags);
    return low | high << 16;
  };
  if constexpr (kThree)
    each_lane<u32>(w, i.o[0], m, f);
  else
    lanes<u32>(w, i.o[0], m, f);
}

template <class H, bool kMax>
inline u16 half_min_max(u16 a, u16 b, u8 flags) {
  if (flags & kFtz) a = H::flush16(a), b = H::flush16(b);
  u16 sign = (a ^ b) & 0x8000;
  if (flags & kAbs) a &= 0x7fff, b &= 0x7fff;
  float x = H::load(a), y = H::load(b);
  if (x != x || y != y) {
    if ((flags & kNan) || (x != x && y != y)) return 0x7fff;
    return (x != x ? b : a) | ((flags & kAbs) ? sign : 0);
  }
  bool x_less = x < y || (x == y && (a >> 15) > (b >> 15));
  return finish<H>((x_less != kMax ? a : b) | ((flags & kAbs) ? sign : 0), flags);
}

template <class H, bool kMax, bool kPair>
void exec_half_min_max(Warp& w, const Inst& i, u32 m) {
  In<u32> a(w, i.o[1]), b(w, i.o[2]);
  each_lane<u32>(w, i.o[0], m, [&](int l) {
    u32 low = half_min_max<H, kMax>(u16(a[l]), u16(b[l]), i.sub);
    u32 high = kPair ? half_min_max<H, kMax>(u16(a[l] >> 16), u16(b[l] >> 16), i.sub) : 0;
    return low | high << 16;
  });
}

template <class H, bool kNeg, bool kPair>
void exec_half_sign(Warp& w, const Inst& i, u32 m) {
  In<u32> a(w, i.o[1]);
  each_lane<u32>(w, i.o[0], m, [&](int l) {
    auto one = [&](u16 h) -> u32 {
      if (i.sub & kFtz) h = H::flush16(h);
      return kNeg ? h ^ 0x8000 : h & 0x7fff;
    };
    return one(u16(a[l])) | (kPair ? one(u16(a[l] >> 16)) << 16 : 0);
  });
}

bool is_pair(Ty t) { return t == Ty::F16x2 || t == Ty::BF16x2; }

template <class F, bool kThree>
ExecFn arith_form(Ty t) {
  switch (t) {
    case Ty::F16:
      return exec_half<Fp16, F, kThree, false>;
    case Ty::F16x2:
      return exec_half<Fp16, F, kThree, true>;
    case Ty::BF16:
      return exec_half<Bf16, F, kThree, false>;
    default:
      return exec_half<Bf16, F, kThree, true>;
  }
}
template <bool kMax>
ExecFn min_max_form(Ty t) {
  switch (t) {
    case Ty::F16:
      return exec_half_min_max<Fp16, kMax, false>;
    case Ty::F16x2:
      return exec_half_min_max<Fp16, kMax, true>;
    case Ty::BF16:
      return exec_half_min_max<Bf16, kMax, false>;
    default:
      return exec_half_min_max<Bf16, kMax, true>;
  }
}
template <bool kNeg>
ExecFn sign_form(Ty t) {
  switch (t) {
    case Ty::F16:
      return exec_half_sign<Fp16, kNeg, false>;
    case Ty::F16x2:
      return exec_half_sign<Fp16, kNeg, true>;
    case Ty::BF16:
      return exec_half_sign<Bf16, kNeg, false>;
    default:
      return exec_half_sign<Bf16, kNeg, true>;
  }
}

void bind(Decoding& d, Ty type, ExecFn fn, size_t sources) {
  d.need(sources + 1);
  d.inst.o[0] = d.dst(0, type);
  for (size_t k = 1; k <= sources; ++k) d.inst.o[k] = d.src(k, type);
  (void)is_pair;
  d.use(fn, Cls::Half);
}

}  // namespace

void decode_half_arith(Decoding& d) {
  Ty type = d.take_type();
  const std::string& op = d.raw.opcode;
  d.take("rn");
  d.inst.sub = static_cast<u8>((d.take("ftz") ? kFtz : 0) | (d.take("sat") ? kSat : 0) | (d.take("relu") ? kRelu : 0));
  if ((d.inst.sub & kRelu) && op != "fma") d.unsupported(".relu of " + op);
  if (op != "fma" && (type == Ty::BF16 || type == Ty::BF16x2)) d.require_sm(90, op + " of bf16");
  if (op == "add") return bind(d, type, arith_form<HAdd, false>(type), 2);
  if (op == "sub") return bind(d, type, arith_form<HSub, false>(type), 2);
  if (op == "mul") return bind(d, type, arith_form<HMul, false>(type), 2);
  if (op != "fma") d.unsupported(op + " for half types");
  bind(d, type, arith_form<HFma, true>(type), 3);
}

void decode_half_min_max(Decoding& d) {
  Ty type = d.take_type();
  d.inst.sub = static_cast<u8>((d.take("ftz") ? kFtz : 0) | (d.take("NaN") ? kNan : 0));
  if (d.take("xorsign") && d.take("abs")) d.inst.sub |= kAbs;
  bind(d, type, d.raw.opcode == "max" ? min_max_form<true>(type) : min_max_form<false>(type), 2);
}

void decode_half_abs_neg(Decoding& d) {
  Ty type = d.take_type();
  d.inst.sub = d.take("ftz") ? kFtz : 0;
  bind(d, type, d.raw.opcode == "neg" ? sign_form<true>(type) : sign_form<false>(type), 1);
}

void add_half_ops(OpTable&) {}

}  // namespace ptxsim
