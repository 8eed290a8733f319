// SPDX-License-Identifier: Apache-2.0
// Special functions: ex2, lg2, rcp, sqrt, rsqrt, sin, cos, tanh in their approximate forms. The ISA gives error
// bounds, not bits: results here are the correctly computed value rounded to the format, well inside every bound.
#include "ops_shared.hpp"

namespace ptxsim {

bool decode_ieee_rcp_sqrt(Decoding& d);

namespace {

// 2^x in double, relative error below 1e-9: Taylor series on [-1/2, 1/2], exponent by bits. Total and vectorizable.
inline double exp2_total(double x) {
  double clamped = x < 160.0 ? (x > -200.0 ? x : -200.0) : 160.0;  // NaN takes the last branch; repaired below
  double shifted = clamped + 0x1.8p52, n = shifted - 0x1.8p52, f = clamped - n;
  double p = 1.3215486790144307e-06;
  p = std::fma(p, f, 1.525273380405984e-05);
  p = std::fma(p, f, 1.5403530393381608e-04);
  p = std::fma(p, f, 1.3333558146428443e-03);
  p = std::fma(p, f, 9.618129107628477e-03);
  p = std::fma(p, f, 5.550410866482158e-02);
  p = std::fma(p, f, 2.402265069591007e-01);
  p = std::fma(p, f, 6.931471805599453e-01);
  p = std::fma(p, f, 1.0);
  u64 exponent = (bit_cast<u64>(shifted) + 1023) << 52;
  return p * bit_cast<double>(exponent);
}

struct Ex2 {
  static float f(float x) {
    float r = static_cast<float>(exp2_total(x));
    return x != x ? x : r;
  }
};
struct Lg2 {
  static float f(float x) { return std::log2(x); }
};
struct Rcp {
  static float f(float x) { return 1.0f / x; }
};
struct Sqrt {
  static float f(float x) { return std::sqrt(x); }
};
struct Rsqrt {
  static float f(float x) { return static_cast<float>(1.0 / std::sqrt(static_cast<double>(x))); }
};
struct Sin {
  static float f(float x) { return static_cast<float>(std::sin(static_cast<double>(x))); }
};
struct Cos {
  static float f(float x) { return static_cast<float>(std::cos(static_cast<double>(x))); }
};
struct Tanh {
  static float f(float x) { return static_cast<float>(std::tanh(static_cast<double>(x))); }
};

template <class F, bool kFtz>
void exec_f32(Warp& w, const Inst& i, u32 m) {
  In<float> a(w, i.o[1]);
  auto f = [&](int l) { return canonical_nan(maybe_flush<kFtz>(F::f(maybe_flush<kFtz>(a[l])))); };
  constexpr bool kVector = std::is_same_v<F, Ex2> || std::is_same_v<F, Rcp> || std::is_same_v<F, Sqrt>;
  if constexpr (kVector)
    lanes<float>(w, i.o[0], m, f);
  else
    each_lane<float>(w, i.o[0], m, f);
}

// f16, f16x2, bf16, bf16x2: sub bit 0 bf16, bit 1 ftz; vec: values per register.
template <class F>
void exec_half(Warp& w, const Inst& i, u32 m) {
  In<u32> a(w, i.o[1]);
  bool bf16 = i.sub & 1, ftz = i.sub & 2;
  auto one = [&](u16 h) -> u32 {
    float x = bf16 ? bf16_to_float(h) : half_to_float(h);
    if (ftz) x = flush(x);
    float r = F::f(x);
    if (ftz) r = flush(r);
    return bf16 ? float_to_bf16(r) : float_to_half(r);
  };
  each_lane<u32>(w, i.o[0], m, [&](int l) { return one(u16(a[l])) | (i.vec == 2 ? one(u16(a[l] >> 16)) << 16 : 0); });
}

// rcp/rsqrt.approx.ftz.f64: the result keeps the upper 32 bits only.
template <bool kRoot>
void exec_f64(Warp& w, const Inst& i, u32 m) {
  In<double> a(w, i.o[1]);
  each_lane<u64>(w, i.o[0], m, [&](int l) {
    double x = bit_cast<double>(bit_cast<u64>(a[l]) & ~0xffffffffull);
    if (std::fpclassify(x) == FP_SUBNORMAL) x = std::copysign(0.0, x);
    double r = kRoot ? 1.0 / std::sqrt(x) : 1.0 / x;
    if (std::fpclassify(r) == FP_SUBNORMAL) r = std::copysign(0.0, r);
    return bit_cast<u64>(r) & ~0xffffffffull;
  });
}

struct Row {
  const char* opcode;
  ExecFn f32, f32_ftz, half;
};

template <class F>
constexpr Row row(const char* opcode, bool has_half) {
  return {opcode, exec_f32<F, false>, exec_f32<F, true>, has_half ? exec_half<F> : nullptr};
}

constexpr Row kRows[] = {row<Ex2>("ex2", true),    row<Lg2>("lg2", false),     row<Rcp>("rcp", false),
                         row<Sqrt>("sqrt", false), row<Rsqrt>("rsqrt", false), row<Sin>("sin", false),
                         row<Cos>("cos", false),   row<Tanh>("tanh", true)};

void decode_mufu(Decoding& d) {
  const std::string& op = d.raw.opcode;
  if ((op == "rcp" || op == "sqrt") && decode_ieee_rcp_sqrt(d)) return;
  if (!d.take("approx")) d.unsupported(op + " without .approx");
  bool ftz = d.take("ftz");
  Ty type = d.take_type();
  d.need(2);
  d.inst.o[0] = d.dst(0, type), d.inst.o[1] = d.src(1, type);
  if (type == Ty::F64 && ftz && (op == "rcp" || op == "rsqrt"))
    return d.use(op == "rcp" ? exec_f64<false> : exec_f64<true>, Cls::Mufu);
  for (const Row& r : kRows) {
    if (op != r.opcode) continue;
    if (type == Ty::F32) return d.use(ftz ? r.f32_ftz : r.f32, Cls::Mufu);
    if (!is_half(type)) break;
    bool bf16 = type == Ty::BF16 || type == Ty::BF16x2;
    if (bf16) d.require_sm(90, op + " of bf16");
    d.inst.sub = static_cast<u8>((bf16 ? 1 : 0) | (ftz ? 2 : 0));
    d.inst.vec = type == Ty::F16x2 || type == Ty::BF16x2 ? 2 : 1;
    return d.use(r.half, Cls::Mufu);
  }
  d.unsupported(op + " for this type");
}

}  // namespace

void add_mufu_ops(OpTable& t) {
  for (const Row& r : kRows) t[r.opcode] = decode_mufu;
}

}  // namespace ptxsim
