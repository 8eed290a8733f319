// SPDX-License-Identifier: Apache-2.0
// Integer operations whose result is wider or narrower than a source: mul.wide, mad.wide, dp4a, dp2a.
#include "ops_shared.hpp"

namespace ptxsim {
namespace {

template <class W, class T>
void exec_mul_wide(Warp& w, const Inst& i, u32 m) {
  In<T> a(w, i.o[1]), b(w, i.o[2]);
  lanes<W>(w, i.o[0], m, [&](int l) { return static_cast<W>(static_cast<W>(a[l]) * static_cast<W>(b[l])); });
}

template <class W, class T>
void exec_mad_wide(Warp& w, const Inst& i, u32 m) {
  using UW = std::make_unsigned_t<W>;
  In<T> a(w, i.o[1]), b(w, i.o[2]);
  In<UW> c(w, i.o[3]);
  lanes<UW>(w, i.o[0], m, [&](int l) {
    return static_cast<UW>(static_cast<UW>(static_cast<W>(static_cast<W>(a[l]) * static_cast<W>(b[l]))) + c[l]);
  });
}

struct WideRow {
  Ty type, result;
  ExecFn mul, mad;
};

// u16 products go through u32 so that promotion to int cannot overflow.
constexpr WideRow kWide[] = {
    {Ty::U16, Ty::U32, exec_mul_wide<u32, u16>, exec_mad_wide<u32, u16>},
    {Ty::S16, Ty::S32, exec_mul_wide<i32, i16>, exec_mad_wide<i32, i16>},
    {Ty::U32, Ty::U64, exec_mul_wide<u64, u32>, exec_mad_wide<u64, u32>},
    {Ty::S32, Ty::S64, exec_mul_wide<i64, i32>, exec_mad_wide<i64, i32>},
};

// Dot product of four bytes (dp4a) or of two halves with two bytes (dp2a), accumulated in 32 bits.
template <class A, class B>
void exec_dp4a(Warp& w, const Inst& i, u32 m) {
  In<u32> a(w, i.o[1]), b(w, i.o[2]), c(w, i.o[3]);
  lanes<u32>(w, i.o[0], m, [&](int l) {
    u32 sum = c[l];
    for (int k = 0; k < 4; ++k)
      sum += static_cast<u32>(static_cast<i32>(static_cast<A>(a[l] >> 8 * k)) *
                              static_cast<i32>(static_cast<B>(b[l] >> 8 * k)));
    return sum;
  });
}

template <class A, class B>
void exec_dp2a(Warp& w, const Inst& i, u32 m) {
  using Half = std::conditional_t<std::is_signed_v<A>, i16, u16>;
  In<u32> a(w, i.o[1]), b(w, i.o[2]), c(w, i.o[3]);
  int first = i.sub ? 2 : 0;
  lanes<u32>(w, i.o[0], m, [&](int l) {
    u32 sum = c[l];
    for (int k = 0; k < 2; ++k)
      sum += static_cast<u32>(static_cast<i32>(static_cast<Half>(a[l] >> 16 * k)) *
                              static_cast<i32>(static_cast<B>(b[l] >> 8 * (first + k))));
    return sum;
  });
}

void decode_dot(Decoding& d) {
  bool four = d.raw.opcode == "dp4a";
  if (!four) {
    d.inst.sub = d.take("hi");
    if (!d.inst.sub && !d.take("lo")) d.unsupported("dp2a without .lo or .hi");
  }
  Ty a = d.take_type(), b = d.take_type();
  if ((a != Ty::U32 && a != Ty::S32) || (b != Ty::U32 && b != Ty::S32))
    d.unsupported(d.raw.opcode + " for these types");
  bool sa = a == Ty::S32, sb = b == Ty::S32;
  ExecFn fn4 = sa ? (sb ? exec_dp4a<i8, i8> : exec_dp4a<i8, u8>) : (sb ? exec_dp4a<u8, i8> : exec_dp4a<u8, u8>);
  ExecFn fn2 = sa ? (sb ? exec_dp2a<i8, i8> : exec_dp2a<i8, u8>) : (sb ? exec_dp2a<u8, i8> : exec_dp2a<u8, u8>);
  d.need(4);
  d.inst.o[0] = d.dst(0, Ty::U32);
  for (size_t k = 1; k < 4; ++k) d.inst.o[k] = d.src(k, Ty::U32);
  d.use(four ? fn4 : fn2, Cls::Alu);
}

}  // namespace

void decode_wide(Decoding& d) {
  Ty type = d.take_type();
  bool mul = d.raw.opcode == "mul";
  for (const WideRow& row : kWide) {
    if (row.type != type) continue;
    d.need(mul ? 3 : 4);
    d.inst.o[0] = d.dst(0, row.result);
    d.inst.o[1] = d.src(1, type), d.inst.o[2] = d.src(2, type);
    if (!mul) d.inst.o[3] = d.src(3, row.result);
    return d.use(mul ? row.mul : row.mad, Cls::Alu);
  }
  d.unsupported(".wide for ." + std::string(type_name(type)));
}

void add_wide_ops(OpTable& t) { t["dp4a"] = t["dp2a"] = decode_dot; }

}  // namespace ptxsim
