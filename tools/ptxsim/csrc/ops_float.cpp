// SPDX-License-Identifier: Apache-2.0
// f32 and f64 arithmetic: add, sub, mul, fma/mad, min, max, abs, neg, div, rcp, sqrt (the IEEE forms), copysign, testp.
// Nearest rounding uses the host's arithmetic; the directed modes of f32 go through an exact or sticky double, those
// of f64 through the host's rounding mode. mul and add are never contracted (the build passes -ffp-contract=off).
#include "ops_shared.hpp"

namespace ptxsim {
namespace {

struct FAdd {
  template <class T>
  static T f(T a, T b) {
    return a + b;
  }
  static double wide(double a, double b) { return add_round_odd(a, b); }
};
struct FSub {
  template <class T>
  static T f(T a, T b) {
    return a - b;
  }
  static double wide(double a, double b) { return add_round_odd(a, -b); }
};
struct FMul {
  template <class T>
  static T f(T a, T b) {
    return a * b;
  }
  static double wide(double a, double b) { return a * b; }
};

template <bool kFtz, bool kSat>
inline float finish_f32(float r) {
  r = maybe_flush<kFtz>(r);
  if constexpr (kSat)
    return saturate(r);
  else
    return canonical_nan(r);
}

template <class F, bool kFtz, bool kSat>
void exec_f32_2(Warp& w, const Inst& i, u32 m) {
  In<float> a(w, i.o[1]), b(w, i.o[2]);
  lanes<float>(w, i.o[0], m,
               [&](int l) { return finish_f32<kFtz, kSat>(F::f(maybe_flush<kFtz>(a[l]), maybe_flush<kFtz>(b[l]))); });
}

template <bool kFtz, bool kSat>
void exec_fma_f32(Warp& w, const Inst& i, u32 m) {
  In<float> a(w, i.o[1]), b(w, i.o[2]), c(w, i.o[3]);
  lanes<float>(w, i.o[0], m, [&](int l) {
    return finish_f32<kFtz, kSat>(std::fma(maybe_flush<kFtz>(a[l]), maybe_flush<kFtz>(b[l]), maybe_flush<kFtz>(c[l])));
  });
}

// Slow forms. Inst::sub: rounding mode | ftz << 3 | sat << 4.
struct Flags {
  Rnd mode;
  bool ftz, sat;
  explicit Flags(const Inst& i) : mode(static_cast<Rnd>(i.sub & 7)), ftz(i.sub & 8), sat(i.sub & 16) {}
  float in(float x) const { return ftz ? flush(x) : x; }
  float out(float x) const {
    if (ftz) x = flush(x);
    return sat ? saturate(x) : canonical_nan(x);
  }
};

// Sums of exactly opposite values are -0 when rounding down.
inline float directed_zero(float r, double x, Rnd mode, bool cancelled) {
  return x == 0.0 && cancelled && mode == Rnd::RM ? -0.0f : r;
}

template <class F>
void exec_f32_2_mode(Warp& w, const Inst& i, u32 m) {
  Flags flags(i);
  In<float> a(w, i.o[1]), b(w, i.o[2]);
  constexpr bool kSum = !std::is_same_v<F, FMul>;
  each_lane<float>(w, i.o[0], m, [&](int l) {
    double x = flags.in(a[l]), y = flags.in(b[l]), exact = F::wide(x, y);
    bool cancelled = kSum && (x != 0.0 || std::signbit(x) != std::signbit(std::is_same_v<F, FSub> ? -y : y));
    return flags.out(directed_zero(round_to_f32(exact, flags.mode), exact, flags.mode, cancelled));
  });
}

void exec_fma_f32_mode(Warp& w, const Inst& i, u32 m) {
  Flags flags(i);
  In<float> a(w, i.o[1]), b(w, i.o[2]), c(w, i.o[3]);
  each_lane<float>(w, i.o[0], m, [&](int l) {
    double p = double(flags.in(a[l])) * double(flags.in(b[l])), z = flags.in(c[l]), exact = add_round_odd(p, z);
    bool cancelled = p != 0.0 || std::signbit(p) != std::signbit(z);
    return flags.out(directed_zero(round_to_f32(exact, flags.mode), exact, flags.mode, cancelled));
  });
}

template <class F>
__attribute__((noinline)) void loop_f64_2(Warp& w, const Inst& i, u32 m) {
  In<double> a(w, i.o[1]), b(w, i.o[2]);
  each_lane<double>(w, i.o[0], m, [&](int l) { return F::f(a[l], b[l]); });
}
template <class F>
void exec_f64_2(Warp& w, const Inst& i, u32 m) {
  HostRounding rounding(static_cast<Rnd>(i.sub & 7));
  loop_f64_2<F>(w, i, m);
}
__attribute__((noinline)) void loop_fma_f64(Warp& w, const Inst& i, u32 m) {
  In<double> a(w, i.o[1]), b(w, i.o[2]), c(w, i.o[3]);
  each_lane<double>(w, i.o[0], m, [&](int l) { return std::fma(a[l], b[l], c[l]); });
}
void exec_fma_f64(Warp& w, const Inst& i, u32 m) {
  HostRounding rounding(static_cast<Rnd>(i.sub & 7));
  loop_fma_f64(w, i, m);
}

template <class F>
ExecFn f32_form(Rnd mode, bool ftz, bool sat) {
  if (mode != Rnd::RN) return exec_f32_2_mode<F>;
  if (ftz) return sat ? exec_f32_2<F, true, true> : exec_f32_2<F, true, false>;
  return sat ? exec_f32_2<F, false, true> : exec_f32_2<F, false, false>;
}

ExecFn fma_form(Rnd mode, bool ftz, bool sat) {
  if (mode != Rnd::RN) return exec_fma_f32_mode;
  if (ftz) return sat ? exec_fma_f32<true, true> : exec_fma_f32<true, false>;
  return sat ? exec_fma_f32<false, true> : exec_fma_f32<false, false>;
}

void bind(Decoding& d, Ty type, ExecFn fn, size_t sources) {
  d.need(sources + 1);
  d.inst.o[0] = d.dst(0, type);
  for (size_t k = 1; k <= sources; ++k) d.inst.o[k] = d.src(k, type);
  d.use(fn, type == Ty::F64 ? Cls::Fp64 : Cls::Fp);
}

// ---- min, max: NaN loses unless .NaN; -0 < +0; .xorsign.abs compares magnitudes.
struct MinMax {
  bool max, nan, ftz, abs;
};  // Inst::sub bits 0..3

template <class T>
inline T min_max(T a, T b, const MinMax& k) {
  bool a_nan = a != a, b_nan = b != b;
  if (a_nan || b_nan) {
    if (k.nan || (a_nan && b_nan)) return sizeof(T) == 4 ? static_cast<T>(bit_cast<float>(kNanF32)) : a + b;
    return a_nan ? b : a;
  }
  if (a == b) return std::signbit(a) == !k.max ? a : b;
  return (a < b) == !k.max ? a : b;
}

void exec_min_max_f32(Warp& w, const Inst& i, u32 m) {
  MinMax k{bool(i.sub & 1), bool(i.sub & 2), bool(i.sub & 4), bool(i.sub & 8)};
  In<float> a(w, i.o[1]), b(w, i.o[2]);
  if (!k.abs && !k.nan) {  // the hot form, kept vectorizable
    const bool max = k.max, ftz = k.ftz;
    return lanes<u32>(w, i.o[0], m, [&](int l) {
      float x = ftz ? flush(a[l]) : a[l], y = ftz ? flush(b[l]) : b[l];
      u32 xb = bit_cast<u32>(x), yb = bit_cast<u32>(y);
      bool x_less = x < y || (x == y && (xb >> 31) > (yb >> 31));
      u32 r = x_less != max ? xb : yb;
      r = x != x ? yb : r;
      r = y != y ? xb : r;
      return x != x && y != y ? kNanF32 : r;
    });
  }
  each_lane<float>(w, i.o[0], m, [&](int l) {
    float x = a[l], y = b[l];
    if (k.ftz) x = flush(x), y = flush(y);
    if (!k.abs) return min_max(x, y, k);
    u32 sign = (bit_cast<u32>(x) ^ bit_cast<u32>(y)) & 0x80000000u;
    float r = min_max(std::fabs(x), std::fabs(y), k);
    return r != r ? r : bit_cast<float>(bit_cast<u32>(r) | sign);
  });
}

void exec_min_max3_f32(Warp& w, const Inst& i, u32 m) {
  MinMax k{bool(i.sub & 1), bool(i.sub & 2), bool(i.sub & 4), bool(i.sub & 8)};
  In<float> a(w, i.o[1]), b(w, i.o[2]), c(w, i.o[3]);
  each_lane<float>(w, i.o[0], m, [&](int l) {
    float x = a[l], y = b[l], z = c[l];
    if (k.ftz) x = flush(x), y = flush(y), z = flush(z);
    if (k.abs) x = std::fabs(x), y = std::fabs(y), z = std::fabs(z);
    return min_max(min_max(x, y, k), z, k);
  });
}

void exec_min_max_f64(Warp& w, const Inst& i, u32 m) {
  MinMax k{bool(i.sub & 1), false, false, false};
  In<double> a(w, i.o[1]), b(w, i.o[2]);
  each_lane<double>(w, i.o[0], m, [&](int l) { return min_max(a[l], b[l], k); });
}

// ---- abs, neg, copysign, testp: bit operations; .ftz flushes first.
template <bool kNeg>
void exec_sign_f32(Warp& w, const Inst& i, u32 m) {
  In<u32> a(w, i.o[1]);
  bool ftz = i.sub & 8;
  lanes<u32>(w, i.o[0], m, [&](int l) {
    u32 x = a[l];
    if (ftz && !(x & 0x7f800000u)) x &= 0x80000000u;
    return kNeg ? x ^ 0x80000000u : x & 0x7fffffffu;
  });
}
struct Neg64 {
  static u64 f(u64 a) { return a ^ (1ull << 63); }
};
struct Abs64 {
  static u64 f(u64 a) { return a & ~(1ull << 63); }
};
struct Copysign32 {
  static u32 f(u32 a, u32 b) { return (a & 0x80000000u) | (b & 0x7fffffffu); }
};
struct Copysign64 {
  static u64 f(u64 a, u64 b) { return (a & (1ull << 63)) | (b & ~(1ull << 63)); }
};

template <class T>
void exec_testp(Warp& w, const Inst& i, u32 m) {
  In<T> a(w, i.o[1]);
  u32 r = lane_mask([&](int l) {
    T x = a[l];
    int c = std::fpclassify(x);
    switch (i.sub) {
      case 0:
        return c != FP_NAN && c != FP_INFINITE;
      case 1:
        return c == FP_INFINITE;
      case 2:
        return c != FP_NAN;
      case 3:
        return c == FP_NAN;
      case 4:
        return c == FP_NORMAL;
      default:
        return c == FP_SUBNORMAL;
    }
  });
  set_pred(w, i.o[0], r, m);
}

void decode_testp(Decoding& d) {
  const char* kinds[] = {"finite", "infinite", "number", "notanumber", "normal", "subnormal"};
  bool known = false;
  for (u8 k = 0; k < 6; ++k)
    if (d.take(kinds[k])) d.inst.sub = k, known = true;
  Ty type = d.take_type();
  if (!known || (type != Ty::F32 && type != Ty::F64)) d.unsupported("this testp");
  d.need(2);
  d.inst.o[0] = d.pred_dst(d.op(0)), d.inst.o[1] = d.src(1, type);
  d.use(type == Ty::F32 ? exec_testp<float> : exec_testp<double>, Cls::Fp);
}

void decode_copysign(Decoding& d) {
  Ty type = d.take_type();
  if (type == Ty::F32)
    bind(d, type, run2<u32, u32, Copysign32>, 2);
  else if (type == Ty::F64)
    bind(d, type, run2<u64, u64, Copysign64>, 2);
}

// ---- div, rcp, sqrt with IEEE rounding
float divide(float a, float b, Rnd mode) {
  if (mode == Rnd::RN) return a / b;
  double q = double(a) / double(b);
  if (std::isfinite(q) && q != 0.0) {  // make it sticky: the remainder tells on which side the quotient lies
    double rest = std::fma(-q, double(b), double(a));
    u64 bits = bit_cast<u64>(q);
    if (rest != 0.0 && !(bits & 1)) q = bit_cast<double>(((rest > 0) == (b > 0)) == (q > 0) ? bits + 1 : bits - 1);
  }
  return round_to_f32(q, mode);
}

float square_root(float a, Rnd mode) {
  if (mode == Rnd::RN || !(a > 0) || std::isinf(a)) return std::sqrt(a);
  double r = std::sqrt(double(a)), rest = std::fma(-r, r, double(a));
  u64 bits = bit_cast<u64>(r);
  if (rest != 0.0 && !(bits & 1)) r = bit_cast<double>(rest > 0 ? bits + 1 : bits - 1);
  return round_to_f32(r, mode);
}

void exec_div_f32(Warp& w, const Inst& i, u32 m) {
  Flags flags(i);
  In<float> a(w, i.o[1]), b(w, i.o[2]);
  each_lane<float>(w, i.o[0], m, [&](int l) { return flags.out(divide(flags.in(a[l]), flags.in(b[l]), flags.mode)); });
}

// .approx: a * (1/b); for |b| above 2^126 the reciprocal underflows to 0, as the ISA documents.
void exec_div_approx(Warp& w, const Inst& i, u32 m) {
  Flags flags(i);
  In<float> a(w, i.o[1]), b(w, i.o[2]);
  each_lane<float>(w, i.o[0], m, [&](int l) {
    float x = flags.in(a[l]), y = flags.in(b[l]);
    if (std::fabs(y) > 0x1p126f && std::isfinite(y)) return flags.out(x * std::copysign(0.0f, y));
    return flags.out(x / y);
  });
}

void exec_rcp_f32(Warp& w, const Inst& i, u32 m) {
  Flags flags(i);
  In<float> a(w, i.o[1]);
  each_lane<float>(w, i.o[0], m, [&](int l) { return flags.out(divide(1.0f, flags.in(a[l]), flags.mode)); });
}
void exec_sqrt_f32(Warp& w, const Inst& i, u32 m) {
  Flags flags(i);
  In<float> a(w, i.o[1]);
  each_lane<float>(w, i.o[0], m, [&](int l) { return flags.out(square_root(flags.in(a[l]), flags.mode)); });
}

struct FDiv {
  template <class T>
  static T f(T a, T b) {
    return a / b;
  }
};
__attribute__((noinline)) void loop_rcp_f64(Warp& w, const Inst& i, u32 m) {
  In<double> a(w, i.o[1]);
  each_lane<double>(w, i.o[0], m, [&](int l) { return 1.0 / a[l]; });
}
void exec_rcp_f64(Warp& w, const Inst& i, u32 m) {
  HostRounding rounding(static_cast<Rnd>(i.sub & 7));
  loop_rcp_f64(w, i, m);
}
__attribute__((noinline)) void loop_sqrt_f64(Warp& w, const Inst& i, u32 m) {
  In<double> a(w, i.o[1]);
  each_lane<double>(w, i.o[0], m, [&](int l) { return std::sqrt(a[l]); });
}
void exec_sqrt_f64(Warp& w, const Inst& i, u32 m) {
  HostRounding rounding(static_cast<Rnd>(i.sub & 7));
  loop_sqrt_f64(w, i, m);
}

u8 pack_flags(Rnd mode, bool ftz, bool sat) {
  return static_cast<u8>(static_cast<u8>(mode) | (ftz ? 8 : 0) | (sat ? 16 : 0));
}

}  // namespace

Rnd take_rounding(Decoding& d, bool* given) {
  std::string mod = d.take_any({"rn", "rz", "rm", "rp"});
  if (given) *given = !mod.empty();
  return mod == "rz" ? Rnd::RZ : mod == "rm" ? Rnd::RM : mod == "rp" ? Rnd::RP : Rnd::RN;
}

void decode_float_arith(Decoding& d) {
  Ty type = d.peek_type();
  if (is_half(type)) return decode_half_arith(d);
  d.take_type();
  const std::string& op = d.raw.opcode;
  Rnd mode = take_rounding(d);
  bool ftz = d.take("ftz"), sat = d.take("sat");
  if (type == Ty::F64 && (ftz || sat)) d.unsupported(".ftz or .sat for .f64");
  d.inst.sub = pack_flags(mode, ftz, sat);
  bool wide = type == Ty::F64;
  if (op == "add") return bind(d, type, wide ? exec_f64_2<FAdd> : f32_form<FAdd>(mode, ftz, sat), 2);
  if (op == "sub") return bind(d, type, wide ? exec_f64_2<FSub> : f32_form<FSub>(mode, ftz, sat), 2);
  if (op == "mul") return bind(d, type, wide ? exec_f64_2<FMul> : f32_form<FMul>(mode, ftz, sat), 2);
  bind(d, type, wide ? exec_fma_f64 : fma_form(mode, ftz, sat), 3);
}

void decode_float_min_max(Decoding& d) {
  Ty type = d.peek_type();
  if (is_half(type)) return decode_half_min_max(d);
  d.take_type();
  bool max = d.raw.opcode == "max", ftz = d.take("ftz"), nan = d.take("NaN"), abs = d.take("xorsign");
  if (d.count() == 4 || abs) abs = d.take("abs") || abs;
  d.inst.sub = static_cast<u8>((max ? 1 : 0) | (nan ? 2 : 0) | (ftz ? 4 : 0) | (abs ? 8 : 0));
  if (type == Ty::F64) return bind(d, type, exec_min_max_f64, 2);
  bool three = d.count() == 4;
  bind(d, type, three ? exec_min_max3_f32 : exec_min_max_f32, three ? 3 : 2);
}

void decode_float_abs_neg(Decoding& d) {
  Ty type = d.peek_type();
  if (is_half(type)) return decode_half_abs_neg(d);
  d.take_type();
  bool neg = d.raw.opcode == "neg", ftz = d.take("ftz");
  d.inst.sub = pack_flags(Rnd::RN, ftz, false);
  if (type == Ty::F64) return bind(d, type, neg ? run1<u64, u64, Neg64> : run1<u64, u64, Abs64>, 1);
  bind(d, type, neg ? exec_sign_f32<true> : exec_sign_f32<false>, 1);
}

void decode_float_div(Decoding& d) {
  if (d.raw.opcode != "div") d.unsupported("float remainder");
  bool approx = d.take("approx"), full = d.take("full"), given = false;
  Rnd mode = take_rounding(d, &given);
  bool ftz = d.take("ftz");
  Ty type = d.take_type();
  d.inst.sub = pack_flags(mode, ftz, false);
  if (type == Ty::F64 && given) return bind(d, type, exec_f64_2<FDiv>, 2);
  if (type != Ty::F32 || approx + full + given != 1) d.unsupported("this form of div");
  bind(d, type, approx ? exec_div_approx : exec_div_f32, 2);
}

// rcp.rnd, sqrt.rnd; the approximate forms live in ops_mufu.cpp.
bool decode_ieee_rcp_sqrt(Decoding& d) {
  bool given = false;
  Rnd mode = take_rounding(d, &given);
  if (!given) return false;
  bool ftz = d.take("ftz"), rcp = d.raw.opcode == "rcp";
  Ty type = d.take_type();
  d.inst.sub = pack_flags(mode, ftz, false);
  if (type == Ty::F64)
    bind(d, type, rcp ? exec_rcp_f64 : exec_sqrt_f64, 1);
  else if (type == Ty::F32)
    bind(d, type, rcp ? exec_rcp_f32 : exec_sqrt_f32, 1);
  return true;
}

void add_float_ops(OpTable& t) {
  t["fma"] = decode_float_arith;
  t["testp"] = decode_testp;
  t["copysign"] = decode_copysign;
}

}  // namespace ptxsim
