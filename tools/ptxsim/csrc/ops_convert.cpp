// SPDX-License-Identifier: Apache-2.0
// cvt. Hot forms have vectorized loops; every other form goes through one scalar path that is exact for all modes.
#include "ops_shared.hpp"

namespace ptxsim {
namespace {

// Inst::imm of a conversion.
struct Form {
  Ty to = Ty::None, from = Ty::None;
  Rnd mode = Rnd::RN;
  bool integral = false, ftz = false, sat = false, satfinite = false, relu = false;

  i64 pack() const {
    return static_cast<i64>(to) | static_cast<i64>(from) << 8 | static_cast<i64>(mode) << 16 | i64(integral) << 24 |
           i64(ftz) << 25 | i64(sat) << 26 | i64(satfinite) << 27 | i64(relu) << 28;
  }
  static Form unpack(i64 v) {
    Form f;
    f.to = static_cast<Ty>(v & 0xff), f.from = static_cast<Ty>(v >> 8 & 0xff),
    f.mode = static_cast<Rnd>(v >> 16 & 0xff);
    f.integral = v >> 24 & 1, f.ftz = v >> 25 & 1, f.sat = v >> 26 & 1, f.satfinite = v >> 27 & 1, f.relu = v >> 28 & 1;
    return f;
  }
};

bool real(Ty t) { return t == Ty::F16 || t == Ty::BF16 || t == Ty::TF32 || t == Ty::F32 || t == Ty::F64; }

double integral_part(double x, Rnd mode) {
  switch (mode) {
    case Rnd::RZ:
      return std::trunc(x);
    case Rnd::RM:
      return std::floor(x);
    case Rnd::RP:
      return std::ceil(x);
    default:
      return std::nearbyint(x);
  }
}

double load_real(u64 raw, const Form& f) {
  switch (f.from) {
    case Ty::F16:
      return half_to_float(static_cast<u16>(raw));
    case Ty::BF16:
      return bf16_to_float(static_cast<u16>(raw));
    case Ty::F64:
      return bit_cast<double>(raw);
    default: {
      float x = bit_cast<float>(static_cast<u32>(raw));
      return f.ftz ? flush(x) : x;
    }
  }
}

u64 store_real(double x, const Form& f) {
  if (f.sat) x = saturate(x);
  if (f.relu && (x < 0 || (x == 0 && std::signbit(x)))) x = 0;
  switch (f.to) {
    case Ty::F16:
      return encode_float(x, kFp16, f.mode, f.satfinite);
    case Ty::BF16:
      return encode_float(x, kBf16, f.mode, f.satfinite);
    case Ty::TF32:
      return x != x ? kNanF32 : encode_float(x, kTf32, f.mode, f.satfinite) << 13;
    case Ty::F64:
      return bit_cast<u64>(x);
    default: {
      float r = round_to_f32(x, f.mode);
      if (f.ftz) r = flush(r);
      return bit_cast<u32>(canonical_nan(r));
    }
  }
}

// Integer magnitude -> double whose last bit is sticky.
double sticky(u64 v) {
  if (v >> 53 == 0) return static_cast<double>(v);
  int shift = 11 - __builtin_clzll(v);
  u64 kept = v >> shift;
  if (v & ((1ull << shift) - 1)) kept |= 1;
  return std::ldexp(static_cast<double>(kept), shift);
}

u64 extend(u64 raw, Ty type) {
  int bits = type_bytes(type) * 8;
  if (bits == 64) return raw;
  raw &= (1ull << bits) - 1;
  if (is_signed(type) && (raw >> (bits - 1) & 1)) raw |= ~0ull << bits;
  return raw;
}

u64 real_to_int(double x, const Form& f) {
  // NaN: 0, except that f64 sources and 64-bit destinations give the most negative pattern.
  if (x != x) return f.from == Ty::F64 || type_bytes(f.to) == 8 ? 1ull << (type_bytes(f.to) * 8 - 1) : 0;
  x = integral_part(x, f.mode);
  int bits = type_bytes(f.to) * 8;
  if (is_signed(f.to)) {
    double limit = std::ldexp(1.0, bits - 1);
    i64 low = bits == 64 ? INT64_MIN : -(i64(1) << (bits - 1)),
        high = bits == 64 ? INT64_MAX : (i64(1) << (bits - 1)) - 1;
    return static_cast<u64>(x >= limit ? high : x < -limit ? low : static_cast<i64>(x));
  }
  double limit = std::ldexp(1.0, bits);
  u64 high = bits == 64 ? ~0ull : (1ull << bits) - 1;
  return x >= limit ? high : x <= 0 ? 0 : static_cast<u64>(x);
}

u64 int_to_real(u64 raw, const Form& f) {
  bool negative = is_signed(f.from) && static_cast<i64>(raw) < 0;
  if (f.to == Ty::F64) {
    HostRounding rounding(f.mode);
    volatile i64 s = static_cast<i64>(raw);
    volatile u64 u = raw;
    return bit_cast<u64>(is_signed(f.from) ? static_cast<double>(s) : static_cast<double>(u));
  }
  double x = sticky(negative ? 0 - raw : raw);
  return store_real(negative ? -x : x, f);
}

u64 int_to_int(u64 raw, const Form& f) {
  if (!f.sat) return extend(raw, f.to);
  int bits = type_bytes(f.to) * 8;
  bool from_signed = is_signed(f.from);
  i64 s = static_cast<i64>(raw);
  if (is_signed(f.to)) {
    i64 high = bits == 64 ? INT64_MAX : (i64(1) << (bits - 1)) - 1, low = -high - 1;
    if (!from_signed) return raw > static_cast<u64>(high) ? static_cast<u64>(high) : raw;
    return static_cast<u64>(s > high ? high : s < low ? low : s);
  }
  u64 high = bits == 64 ? ~0ull : (1ull << bits) - 1;
  if (from_signed && s < 0) return 0;
  return raw > high ? high : raw;
}

u64 convert(u64 raw, const Form& f) {
  if (real(f.from)) {
    double x = load_real(raw, f);
    if (!real(f.to)) return real_to_int(x, f);
    return store_real(f.integral ? integral_part(x, f.mode) : x, f);
  }
  raw = extend(raw, f.from);
  return real(f.to) ? int_to_real(raw, f) : int_to_int(raw, f);
}

// width[0], width[1]: register widths of destination and source.
void exec_general(Warp& w, const Inst& i, u32 m) {
  Form f = Form::unpack(i.imm);
  for (u32 left = m; left; left &= left - 1) {
    int l = __builtin_ctz(left);
    u64 raw = i.width[1] == 64 ? w.r64(i.o[1])[l] : w.r32(i.o[1])[l];
    u64 r = convert(raw, f);
    if (i.width[0] == 64)
      w.r64(i.o[0])[l] = r;
    else
      w.r32(i.o[0])[l] = static_cast<u32>(i.width[0] == 16 ? r & 0xffff : r);
  }
}

// ---- hot forms
template <class D, class S>
void exec_int(Warp& w, const Inst& i, u32 m) {
  In<S> a(w, i.o[1]);
  lanes<D>(w, i.o[0], m, [&](int l) { return static_cast<D>(a[l]); });
}
void exec_f16_f32(Warp& w, const Inst& i, u32 m) {
  In<float> a(w, i.o[1]);
  lanes<u16>(w, i.o[0], m, [&](int l) { return float_to_half(a[l]); });
}
void exec_bf16_f32(Warp& w, const Inst& i, u32 m) {
  In<float> a(w, i.o[1]);
  lanes<u16>(w, i.o[0], m, [&](int l) { return float_to_bf16(a[l]); });
}
void exec_f32_f16(Warp& w, const Inst& i, u32 m) {
  In<u16> a(w, i.o[1]);
  lanes<float>(w, i.o[0], m, [&](int l) { return canonical_nan(half_to_float(a[l])); });
}
void exec_f32_bf16(Warp& w, const Inst& i, u32 m) {
  In<u16> a(w, i.o[1]);
  lanes<float>(w, i.o[0], m, [&](int l) { return canonical_nan(bf16_to_float(a[l])); });
}
template <class S>
void exec_f32_int(Warp& w, const Inst& i, u32 m) {
  In<S> a(w, i.o[1]);
  lanes<float>(w, i.o[0], m, [&](int l) { return static_cast<float>(a[l]); });
}
void exec_f64_f32(Warp& w, const Inst& i, u32 m) {
  In<float> a(w, i.o[1]);
  lanes<double>(w, i.o[0], m, [&](int l) { return static_cast<double>(a[l]); });
}
template <class H>
void exec_pair_f32(Warp& w, const Inst& i, u32 m) {
  In<float> high(w, i.o[1]), low(w, i.o[2]);
  lanes<u32>(w, i.o[0], m, [&](int l) { return static_cast<u32>(H::f(high[l])) << 16 | H::f(low[l]); });
}
struct ToF16 {
  static u16 f(float x) { return float_to_half(x); }
};
struct ToBf16 {
  static u16 f(float x) { return float_to_bf16(x); }
};

struct HotRow {
  Ty to, from;
  ExecFn fn;
};

// Forms without .sat, .ftz, .relu, .satfinite, rounding to nearest; registers exactly as wide as the types need.
constexpr HotRow kHot[] = {
    {Ty::F16, Ty::F32, exec_f16_f32},       {Ty::BF16, Ty::F32, exec_bf16_f32},
    {Ty::F32, Ty::F16, exec_f32_f16},       {Ty::F32, Ty::BF16, exec_f32_bf16},
    {Ty::F32, Ty::S32, exec_f32_int<i32>},  {Ty::F32, Ty::U32, exec_f32_int<u32>},
    {Ty::F64, Ty::F32, exec_f64_f32},       {Ty::U64, Ty::U32, exec_int<u64, u32>},
    {Ty::S64, Ty::S32, exec_int<i64, i32>}, {Ty::U32, Ty::U64, exec_int<u32, u64>},
    {Ty::S32, Ty::S64, exec_int<u32, u64>}, {Ty::U32, Ty::U16, exec_int<u32, u16>},
    {Ty::S32, Ty::S16, exec_int<i32, i16>}, {Ty::U16, Ty::U32, exec_int<u16, u32>},
    {Ty::S32, Ty::U16, exec_int<u32, u16>}, {Ty::S64, Ty::U32, exec_int<u64, u32>},
    {Ty::U64, Ty::S32, exec_int<i64, i32>}, {Ty::U64, Ty::U16, exec_int<u64, u16>},
    {Ty::U32, Ty::S64, exec_int<u32, u64>}, {Ty::S32, Ty::U64, exec_int<u32, u64>},
};

// ---- packed forms: two values per instruction
u32 encode_narrow(double x, Ty pair, const Form& f) {
  if (f.relu && (x < 0 || (x == 0 && std::signbit(x)))) x = 0;
  switch (pair) {
    case Ty::F16x2:
      return encode_float(x, kFp16, f.mode, f.satfinite);
    case Ty::BF16x2:
      return encode_float(x, kBf16, f.mode, f.satfinite);
    case Ty::E4M3x2:
      return encode_float(x, kE4m3, f.mode, true);
    default:
      return encode_float(x, kE5m2, f.mode, true);
  }
}

int narrow_bits(Ty pair) { return pair == Ty::F16x2 || pair == Ty::BF16x2 ? 16 : 8; }

void exec_pair_general(Warp& w, const Inst& i, u32 m) {
  Form f = Form::unpack(i.imm);
  In<float> high(w, i.o[1]), low(w, i.o[2]);
  int bits = narrow_bits(f.to);
  each_lane<u32>(w, i.o[0], m,
                 [&](int l) { return encode_narrow(high[l], f.to, f) << bits | encode_narrow(low[l], f.to, f); });
}

// e4m3x2/e5m2x2 from f16x2 and back.
void exec_pair_pair(Warp& w, const Inst& i, u32 m) {
  Form f = Form::unpack(i.imm);
  In<u32> a(w, i.o[1]);
  bool narrowing = f.from == Ty::F16x2;
  each_lane<u32>(w, i.o[0], m, [&](int l) -> u32 {
    u32 x = a[l];
    if (narrowing)
      return encode_narrow(half_to_float(u16(x >> 16)), f.to, f) << 8 | encode_narrow(half_to_float(u16(x)), f.to, f);
    const FloatFormat& format = f.from == Ty::E4M3x2 ? kE4m3 : kE5m2;
    u32 high = encode_narrow(decode_float(x >> 8 & 0xff, format), Ty::F16x2, f);
    return high << 16 | encode_narrow(decode_float(x & 0xff, format), Ty::F16x2, f);
  });
}

void decode_pair(Decoding& d, Form f) {
  bool from_f32 = f.from == Ty::F32;
  bool fp8 = f.to == Ty::E4M3x2 || f.to == Ty::E5M2x2, from_fp8 = f.from == Ty::E4M3x2 || f.from == Ty::E5M2x2;
  bool known = from_f32 || (fp8 && f.from == Ty::F16x2) || (f.to == Ty::F16x2 && from_fp8);
  if (fp8 || from_fp8) d.require_sm(89, "fp8 cvt");
  if (!known || f.integral || f.ftz || f.sat) d.unsupported("this packed cvt");
  d.need(from_f32 ? 3 : 2);
  d.inst.o[0] = d.dst(0, f.to), d.inst.o[1] = d.src(1, f.from);
  if (from_f32) d.inst.o[2] = d.src(2, Ty::F32);
  d.inst.imm = f.pack();
  bool hot = f.mode == Rnd::RN && !f.relu && !f.satfinite && !fp8;
  if (!from_f32) return d.use(exec_pair_pair, Cls::Cvt);
  d.use(!hot ? exec_pair_general : f.to == Ty::F16x2 ? exec_pair_f32<ToF16> : exec_pair_f32<ToBf16>, Cls::Cvt);
}

Form read_form(Decoding& d) {
  Form f;
  struct {
    const char* mod;
    Rnd mode;
    bool integral;
  } rows[] = {{"rn", Rnd::RN, false}, {"rz", Rnd::RZ, false},   {"rm", Rnd::RM, false},
              {"rp", Rnd::RP, false}, {"rna", Rnd::RNA, false}, {"rni", Rnd::RN, true},
              {"rzi", Rnd::RZ, true}, {"rmi", Rnd::RM, true},   {"rpi", Rnd::RP, true}};
  bool rounded = false;
  for (auto& row : rows)
    if (d.take(row.mod)) f.mode = row.mode, f.integral = row.integral, rounded = true;
  f.ftz = d.take("ftz"), f.sat = d.take("sat"), f.satfinite = d.take("satfinite"), f.relu = d.take("relu");
  f.to = d.take_type(), f.from = d.take_type();
  if (!rounded && real(f.from) && !real(f.to)) d.malformed("cvt from float to integer needs a rounding mode");
  if (!rounded && f.from == Ty::F32 && (f.to == Ty::F16 || f.to == Ty::BF16 || f.to == Ty::TF32))
    d.malformed("this cvt needs a rounding mode");
  return f;
}

void decode_cvt(Decoding& d) {
  if (d.take("pack")) d.unsupported("cvt.pack");
  Form f = read_form(d);
  auto pair = [](Ty t) { return t == Ty::F16x2 || t == Ty::BF16x2 || t == Ty::E4M3x2 || t == Ty::E5M2x2; };
  if (pair(f.to) || pair(f.from)) return decode_pair(d, f);
  auto convertible = [](Ty t) { return real(t) || (t >= Ty::U8 && t <= Ty::S64); };
  if (!convertible(f.to) || !convertible(f.from) || f.from == Ty::TF32) d.unsupported("cvt between these types");
  bool new_bf16 = (f.to == Ty::BF16 && f.from != Ty::F32) || (f.from == Ty::BF16 && f.to != Ty::F32);
  if (new_bf16) d.require_sm(90, "cvt between bf16 and types other than f32");
  if (f.to == Ty::TF32 && f.mode != Rnd::RNA) d.require_sm(90, "cvt.tf32 with .rn or .rz");
  d.need(2);
  Ty to_reg = f.to == Ty::TF32 ? Ty::B32 : f.to;
  d.inst.o[0] = d.dst(0, to_reg, true), d.inst.o[1] = d.src(1, f.from, true);
  d.inst.width[0] = static_cast<u8>(d.width_of(d.op(0), to_reg)),
  d.inst.width[1] = static_cast<u8>(d.width_of(d.op(1), f.from));
  d.inst.imm = f.pack();
  bool exact_width =
      d.inst.width[0] == std::max(16, type_bytes(f.to) * 8) && d.inst.width[1] == std::max(16, type_bytes(f.from) * 8);
  bool plain = !f.ftz && !f.sat && !f.satfinite && !f.relu && !f.integral && f.mode == Rnd::RN && exact_width;
  for (const HotRow& row : kHot)
    if (plain && row.to == f.to && row.from == f.from) return d.use(row.fn, Cls::Cvt);
  d.use(exec_general, Cls::Cvt);
}

}  // namespace

void add_convert_ops(OpTable& t) { t["cvt"] = decode_cvt; }

}  // namespace ptxsim
