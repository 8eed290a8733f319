// SPDX-License-Identifier: Apache-2.0
// Logic and bit manipulation: and/or/xor/not/cnot, shifts, shf, lop3, prmt, bfe, bfi, bfind, brev, clz, popc, bmsk,
// fns, szext. Predicate logic works on the 32-bit lane masks directly.
#include "ops_shared.hpp"

namespace ptxsim {
namespace {

struct And {
  template <class T>
  static T f(T a, T b) {
    return a & b;
  }
};
struct Or {
  template <class T>
  static T f(T a, T b) {
    return a | b;
  }
};
struct Xor {
  template <class T>
  static T f(T a, T b) {
    return a ^ b;
  }
};
struct Not {
  template <class T>
  static T f(T a) {
    return static_cast<T>(~a);
  }
};
struct Cnot {
  template <class T>
  static T f(T a) {
    return a == 0;
  }
};

template <class T>
constexpr u32 kBits = 8 * sizeof(T);

// Shift amounts above the width clamp to it.
template <class T>
void exec_shl(Warp& w, const Inst& i, u32 m) {
  In<T> a(w, i.o[1]);
  In<u32> n(w, i.o[2]);
  lanes<T>(w, i.o[0], m,
           [&](int l) { return n[l] >= kBits<T> ? T(0) : static_cast<T>(a[l] << (n[l] & (kBits<T> - 1))); });
}
template <class T>
void exec_shr(Warp& w, const Inst& i, u32 m) {
  In<T> a(w, i.o[1]);
  In<u32> n(w, i.o[2]);
  if constexpr (std::is_signed_v<T>)
    lanes<T>(w, i.o[0], m, [&](int l) { return static_cast<T>(a[l] >> (n[l] >= kBits<T> ? kBits<T> - 1 : n[l])); });
  else
    lanes<T>(w, i.o[0], m,
             [&](int l) { return n[l] >= kBits<T> ? T(0) : static_cast<T>(a[l] >> (n[l] & (kBits<T> - 1))); });
}

// sub bit 0: right, bit 1: wrap.
void exec_shf(Warp& w, const Inst& i, u32 m) {
  In<u32> a(w, i.o[1]), b(w, i.o[2]), c(w, i.o[3]);
  bool right = i.sub & 1, wrap = i.sub & 2;
  lanes<u32>(w, i.o[0], m, [&](int l) {
    u32 n = wrap ? c[l] & 31 : (c[l] > 32 ? 32 : c[l]);
    u64 both = static_cast<u64>(b[l]) << 32 | a[l];
    return static_cast<u32>(right ? both >> n : (both << n) >> 32);
  });
}

void exec_lop3(Warp& w, const Inst& i, u32 m) {
  In<u32> a(w, i.o[1]), b(w, i.o[2]), c(w, i.o[3]);
  u32 sel[8];
  for (int k = 0; k < 8; ++k) sel[k] = (i.imm >> k & 1) ? kFullMask : 0;
  lanes<u32>(w, i.o[0], m, [&](int l) {
    u32 x = a[l], y = b[l], z = c[l];
    return (sel[0] & ~x & ~y & ~z) | (sel[1] & ~x & ~y & z) | (sel[2] & ~x & y & ~z) | (sel[3] & ~x & y & z) |
           (sel[4] & x & ~y & ~z) | (sel[5] & x & ~y & z) | (sel[6] & x & y & ~z) | (sel[7] & x & y & z);
  });
}

// d|p with a boolean operation on the predicate: p = (d != 0) op q. sub: 1 or, 2 and; pneg bit 5 for q.
void exec_lop3_pred(Warp& w, const Inst& i, u32 m) {
  exec_lop3(w, i, m);
  In<u32> d(w, i.o[0]);
  u32 nonzero = lane_mask([&](int l) { return d[l] != 0; }), q = read_pred(w, i, i.o[5], 5);
  set_pred(w, i.o[4], i.sub == 1 ? nonzero | q : nonzero & q, m);
}

// Default mode: each selector nibble picks a byte of {b,a}; bit 3 replicates its sign.
void exec_prmt(Warp& w, const Inst& i, u32 m) {
  In<u32> a(w, i.o[1]), b(w, i.o[2]), c(w, i.o[3]);
  lanes<u32>(w, i.o[0], m, [&](int l) {
    u64 both = static_cast<u64>(b[l]) << 32 | a[l];
    u32 r = 0;
    for (int k = 0; k < 4; ++k) {
      u32 s = c[l] >> 4 * k;
      u32 byte = static_cast<u32>(both >> 8 * (s & 7)) & 0xff;
      u32 sign = (byte & 0x80) ? 0xffu : 0u;
      r |= ((s & 8) ? sign : byte) << 8 * k;
    }
    return r;
  });
}

u32 prmt_index(u8 mode, u32 select, int k) {
  switch (mode) {
    case 1:
      return (select + static_cast<u32>(k)) & 7;  // f4e
    case 2:
      return (select - static_cast<u32>(k)) & 7;  // b4e
    case 3:
      return select;  // rc8
    case 4:
      return static_cast<u32>(k) > select ? static_cast<u32>(k) : select;  // ecl
    case 5:
      return static_cast<u32>(k) < select ? static_cast<u32>(k) : select;  // ecr
    default:
      return (select & 1) * 2 + (static_cast<u32>(k) & 1);  // rc16
  }
}

void exec_prmt_mode(Warp& w, const Inst& i, u32 m) {
  In<u32> a(w, i.o[1]), b(w, i.o[2]), c(w, i.o[3]);
  each_lane<u32>(w, i.o[0], m, [&](int l) {
    u64 both = static_cast<u64>(b[l]) << 32 | a[l];
    u32 r = 0;
    for (int k = 0; k < 4; ++k) r |= (static_cast<u32>(both >> 8 * prmt_index(i.sub, c[l] & 3, k)) & 0xff) << 8 * k;
    return r;
  });
}

template <class T>
void exec_bfe(Warp& w, const Inst& i, u32 m) {
  using V = std::make_unsigned_t<T>;
  In<V> a(w, i.o[1]);
  In<u32> b(w, i.o[2]), c(w, i.o[3]);
  constexpr u32 msb = kBits<T> - 1;
  each_lane<V>(w, i.o[0], m, [&](int l) {
    u32 pos = b[l] & 0xff, len = c[l] & 0xff;
    V sign = 0;
    if (std::is_signed_v<T> && len) sign = a[l] >> (pos + len - 1 < msb ? pos + len - 1 : msb) & 1;
    V r = 0;
    for (u32 k = 0; k <= msb; ++k) {
      V bit = k < len && pos + k <= msb ? a[l] >> (pos + k) & 1 : sign;
      r |= bit << k;
    }
    return r;
  });
}

template <class T>
void exec_bfi(Warp& w, const Inst& i, u32 m) {
  In<T> a(w, i.o[1]), b(w, i.o[2]);
  In<u32> c(w, i.o[3]), e(w, i.o[4]);
  each_lane<T>(w, i.o[0], m, [&](int l) {
    u32 pos = c[l] & 0xff, len = e[l] & 0xff;
    if (pos >= kBits<T> || !len) return b[l];
    T ones = len >= kBits<T> ? ~T(0) : (T(1) << len) - 1;
    T mask = ones << pos;
    return static_cast<T>((b[l] & ~mask) | ((a[l] << pos) & mask));
  });
}

template <class T>
void exec_bfind(Warp& w, const Inst& i, u32 m) {
  using V = std::make_unsigned_t<T>;
  In<T> a(w, i.o[1]);
  each_lane<u32>(w, i.o[0], m, [&](int l) -> u32 {
    V v = static_cast<V>(a[l] < 0 ? static_cast<T>(~a[l]) : a[l]);
    if (!v) return kFullMask;
    u32 at = 63u - static_cast<u32>(__builtin_clzll(v));
    return i.sub ? kBits<T> - 1 - at : at;
  });
}

template <class T>
void exec_brev(Warp& w, const Inst& i, u32 m) {
  In<T> a(w, i.o[1]);
  each_lane<T>(w, i.o[0], m, [&](int l) {
    T v = a[l], r = 0;
    for (u32 k = 0; k < kBits<T>; ++k) r |= (v >> k & 1) << (kBits<T> - 1 - k);
    return r;
  });
}

template <class T>
void exec_clz(Warp& w, const Inst& i, u32 m) {
  In<T> a(w, i.o[1]);
  each_lane<u32>(w, i.o[0], m, [&](int l) -> u32 {
    if (!a[l]) return kBits<T>;
    return static_cast<u32>(__builtin_clzll(a[l])) - (64 - kBits<T>);
  });
}

template <class T>
void exec_popc(Warp& w, const Inst& i, u32 m) {
  In<T> a(w, i.o[1]);
  lanes<u32>(w, i.o[0], m, [&](int l) { return static_cast<u32>(__builtin_popcountll(a[l])); });
}

void exec_bmsk(Warp& w, const Inst& i, u32 m) {
  In<u32> a(w, i.o[1]), b(w, i.o[2]);
  each_lane<u32>(w, i.o[0], m, [&](int l) -> u32 {
    u32 pos = i.sub ? a[l] & 31 : a[l], len = i.sub ? b[l] & 31 : b[l];
    if (pos >= 32 || !len) return 0;
    u64 ones = len >= 32 ? 0xffffffffull : (1ull << len) - 1;
    return static_cast<u32>(ones << pos);
  });
}

template <class F>
void exec_pred2(Warp& w, const Inst& i, u32 m) {
  set_pred(w, i.o[0], F::f(read_pred(w, i, i.o[1], 1), read_pred(w, i, i.o[2], 2)), m);
}
void exec_not_pred(Warp& w, const Inst& i, u32 m) { set_pred(w, i.o[0], ~read_pred(w, i, i.o[1], 1), m); }

template <class F>
ExecFn for_bits2(Ty t) {
  switch (t) {
    case Ty::B16:
      return run2<u16, u16, F>;
    case Ty::B32:
      return run2<u32, u32, F>;
    case Ty::B64:
      return run2<u64, u64, F>;
    case Ty::Pred:
      return exec_pred2<F>;
    default:
      return nullptr;
  }
}

void decode_logic(Decoding& d) {
  Ty type = d.take_type();
  const std::string& op = d.raw.opcode;
  ExecFn fn = op == "and" ? for_bits2<And>(type) : op == "or" ? for_bits2<Or>(type) : for_bits2<Xor>(type);
  if (!fn) d.unsupported(op + " for this type");
  d.need(3);
  if (type == Ty::Pred) {
    d.inst.o[0] = d.pred_dst(d.op(0));
    for (u32 k = 1; k < 3; ++k) d.inst.o[k] = d.pred_src(d.op(k), k);
  } else {
    d.inst.o[0] = d.dst(0, type), d.inst.o[1] = d.src(1, type), d.inst.o[2] = d.src(2, type);
  }
  d.use(fn, Cls::Alu);
}

void decode_not(Decoding& d) {
  Ty type = d.take_type();
  bool plain = d.raw.opcode == "not";
  d.need(2);
  if (type == Ty::Pred && plain) {
    d.inst.o[0] = d.pred_dst(d.op(0)), d.inst.o[1] = d.pred_src(d.op(1), 1);
    return d.use(exec_not_pred, Cls::Alu);
  }
  d.inst.o[0] = d.dst(0, type), d.inst.o[1] = d.src(1, type);
  ExecFn fn = nullptr;
  if (type == Ty::B16) fn = plain ? run1<u16, u16, Not> : run1<u16, u16, Cnot>;
  if (type == Ty::B32) fn = plain ? run1<u32, u32, Not> : run1<u32, u32, Cnot>;
  if (type == Ty::B64) fn = plain ? run1<u64, u64, Not> : run1<u64, u64, Cnot>;
  d.use(fn, Cls::Alu);
}

void decode_shift(Decoding& d) {
  Ty type = d.take_type();
  d.need(3);
  d.inst.o[0] = d.dst(0, type), d.inst.o[1] = d.src(1, type), d.inst.o[2] = d.src(2, Ty::U32);
  bool left = d.raw.opcode == "shl";
  ExecFn fn = nullptr;
  switch (type) {
    case Ty::B16:
    case Ty::U16:
      fn = left ? exec_shl<u16> : exec_shr<u16>;
      break;
    case Ty::B32:
    case Ty::U32:
      fn = left ? exec_shl<u32> : exec_shr<u32>;
      break;
    case Ty::B64:
    case Ty::U64:
      fn = left ? exec_shl<u64> : exec_shr<u64>;
      break;
    case Ty::S16:
      fn = left ? nullptr : exec_shr<i16>;
      break;
    case Ty::S32:
      fn = left ? nullptr : exec_shr<i32>;
      break;
    case Ty::S64:
      fn = left ? nullptr : exec_shr<i64>;
      break;
    default:
      break;
  }
  d.use(fn, Cls::Alu);
}

void three_words(Decoding& d) {
  d.inst.o[0] = d.dst(0, Ty::B32);
  for (size_t k = 1; k < 4; ++k) d.inst.o[k] = d.src(k, Ty::B32);
}

void decode_shf(Decoding& d) {
  bool right = d.take("r");
  if (!right && !d.take("l")) d.unsupported("shf without .l or .r");
  bool wrap = d.take("wrap");
  if (!wrap && !d.take("clamp")) d.unsupported("shf without .wrap or .clamp");
  d.take("b32");
  d.need(4);
  three_words(d);
  d.inst.sub = static_cast<u8>((right ? 1 : 0) | (wrap ? 2 : 0));
  d.use(exec_shf, Cls::Alu);
}

void decode_lop3(Decoding& d) {
  std::string bool_op = d.take_any({"or", "and"});
  d.take("b32");
  d.need(bool_op.empty() ? 5 : 6);
  if (d.op(4).kind != Operand::Int) d.malformed("lop3 table is not a constant");
  d.inst.imm = static_cast<i64>(d.op(4).bits & 0xff);
  if (bool_op.empty()) {
    three_words(d);
    return d.use(exec_lop3, Cls::Alu);
  }
  if (d.op(0).kind != Operand::Pair) d.malformed("lop3 with a boolean operation needs d|p");
  d.inst.o[0] = d.dst(d.op(0).elems[0], Ty::B32), d.inst.o[4] = d.pred_dst(d.op(0).elems[1]);
  for (size_t k = 1; k < 4; ++k) d.inst.o[k] = d.src(k, Ty::B32);
  d.inst.o[5] = d.pred_src(d.op(5), 5);
  d.inst.sub = bool_op == "or" ? 1 : 2;
  d.use(exec_lop3_pred, Cls::Alu);
}

void decode_prmt(Decoding& d) {
  d.take("b32");
  const char* modes[] = {"f4e", "b4e", "rc8", "ecl", "ecr", "rc16"};
  for (u8 k = 0; k < 6; ++k)
    if (d.take(modes[k])) d.inst.sub = static_cast<u8>(k + 1);
  d.need(4);
  three_words(d);
  d.use(d.inst.sub ? exec_prmt_mode : exec_prmt, Cls::Alu);
}

void decode_bfe(Decoding& d) {
  Ty type = d.take_type();
  d.need(4);
  d.inst.o[0] = d.dst(0, type), d.inst.o[1] = d.src(1, type);
  d.inst.o[2] = d.src(2, Ty::U32), d.inst.o[3] = d.src(3, Ty::U32);
  ExecFn fn = type == Ty::U32   ? exec_bfe<u32>
              : type == Ty::S32 ? exec_bfe<i32>
              : type == Ty::U64 ? exec_bfe<u64>
              : type == Ty::S64 ? exec_bfe<i64>
                                : nullptr;
  d.use(fn, Cls::Alu);
}

void decode_bfi(Decoding& d) {
  Ty type = d.take_type();
  d.need(5);
  d.inst.o[0] = d.dst(0, type), d.inst.o[1] = d.src(1, type), d.inst.o[2] = d.src(2, type);
  d.inst.o[3] = d.src(3, Ty::U32), d.inst.o[4] = d.src(4, Ty::U32);
  d.use(type == Ty::B32 ? exec_bfi<u32> : type == Ty::B64 ? exec_bfi<u64> : nullptr, Cls::Alu);
}

struct CountRow {
  const char* opcode;
  Ty type, result;
  ExecFn fn;
};

constexpr CountRow kCounts[] = {
    {"bfind", Ty::U32, Ty::U32, exec_bfind<u32>}, {"bfind", Ty::S32, Ty::U32, exec_bfind<i32>},
    {"bfind", Ty::U64, Ty::U32, exec_bfind<u64>}, {"bfind", Ty::S64, Ty::U32, exec_bfind<i64>},
    {"brev", Ty::B32, Ty::B32, exec_brev<u32>},   {"brev", Ty::B64, Ty::B64, exec_brev<u64>},
    {"clz", Ty::B32, Ty::U32, exec_clz<u32>},     {"clz", Ty::B64, Ty::U32, exec_clz<u64>},
    {"popc", Ty::B32, Ty::U32, exec_popc<u32>},   {"popc", Ty::B64, Ty::U32, exec_popc<u64>},
};

void decode_count(Decoding& d) {
  if (d.raw.opcode == "bfind") d.inst.sub = d.take("shiftamt");
  Ty type = d.take_type();
  d.need(2);
  for (const CountRow& row : kCounts)
    if (d.raw.opcode == row.opcode && row.type == type) {
      d.inst.o[0] = d.dst(0, row.result), d.inst.o[1] = d.src(1, type);
      return d.use(row.fn, Cls::Alu);
    }
  d.unsupported(d.raw.opcode + " for this type");
}

void decode_bmsk(Decoding& d) {
  d.inst.sub = d.take("wrap");
  if (!d.inst.sub) d.take("clamp");
  d.take("b32");
  d.need(3);
  d.inst.o[0] = d.dst(0, Ty::B32), d.inst.o[1] = d.src(1, Ty::B32), d.inst.o[2] = d.src(2, Ty::B32);
  d.use(exec_bmsk, Cls::Alu);
}

}  // namespace

void add_bit_ops(OpTable& t) {
  t["and"] = t["or"] = t["xor"] = decode_logic;
  t["not"] = t["cnot"] = decode_not;
  t["shl"] = t["shr"] = decode_shift;
  t["shf"] = decode_shf;
  t["lop3"] = decode_lop3;
  t["prmt"] = decode_prmt;
  t["bfe"] = decode_bfe;
  t["bfi"] = decode_bfi;
  t["bfind"] = t["brev"] = t["clz"] = t["popc"] = decode_count;
  t["bmsk"] = decode_bmsk;
}

}  // namespace ptxsim
