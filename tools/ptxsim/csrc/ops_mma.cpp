// SPDX-License-Identifier: Apache-2.0
// mma.sync. Fragments, with g = lane / 4, t = lane % 4 and p elements per 32-bit register: register r of A holds row
// g + 8*(r%2), columns p*t + 4*p*(r/2) + 0..p-1; register r of B holds column g, rows p*t + 4*p*r + 0..p-1. So one
// register of all lanes, read as an array, is an 8 x 4p panel in row-major order, and panels convert in bulk.
// Accumulators: c0 c1 row g, columns 2t 2t+1; c2 c3 row g+8.
#include "memory.hpp"
#include "ops_shared.hpp"
#include "tensor_core.hpp"

namespace ptxsim {
namespace {

struct InF16 {
  static constexpr int p = 2;
  static void load(const u32* r, float* out) { halves_to_floats(reinterpret_cast<const u16*>(r), out, 64); }
};
struct InBf16 {
  static constexpr int p = 2;
  static void load(const u32* r, float* out) { bf16s_to_floats(reinterpret_cast<const u16*>(r), out, 64); }
};
struct InTf32 {
  static constexpr int p = 1;
  static void load(const u32* r, float* out) {  // the low 13 bits are ignored
    for (int l = 0; l < kLanes; ++l) out[l] = bit_cast<float>(r[l] & 0xffffe000u);
  }
};
struct InE4m3 {
  static constexpr int p = 4;
  static void load(const u32* r, float* out) { e4m3s_to_floats(reinterpret_cast<const u8*>(r), out, 128); }
};
struct InE5m2 {
  static constexpr int p = 4;
  static void load(const u32* r, float* out) { e5m2s_to_floats(reinterpret_cast<const u8*>(r), out, 128); }
};

void load_accumulator(const Warp& w, const u32* slots, bool half, float (*c)[64]) {
  for (int h = 0; h < 2; ++h) {
    if (half) {
      halves_to_floats(reinterpret_cast<const u16*>(w.r32(slots[h])), c[h], 64);
      continue;
    }
    const u32* even = w.r32(slots[2 * h]);
    const u32* odd = w.r32(slots[2 * h + 1]);
    for (int l = 0; l < kLanes; ++l) c[h][2 * l] = bit_cast<float>(even[l]), c[h][2 * l + 1] = bit_cast<float>(odd[l]);
  }
}

void store_accumulator(const Warp& w, const u32* slots, bool half, const float (*c)[64]) {
  for (int h = 0; h < 2; ++h) {
    if (half) {
      u16* d = reinterpret_cast<u16*>(w.r32(slots[h]));
      for (int k = 0; k < 64; ++k) d[k] = float_to_half(c[h][k]);
      continue;
    }
    u32* even = w.r32(slots[2 * h]);
    u32* odd = w.r32(slots[2 * h + 1]);
    for (int l = 0; l < kLanes; ++l) {
      even[l] = bit_cast<u32>(canonical_nan(c[h][2 * l]));
      odd[l] = bit_cast<u32>(canonical_nan(c[h][2 * l + 1]));
    }
  }
}

// ext: D, A, B, C slots. vec: A registers (B has half as many); sub bit 0: C is f16, bit 1: D is f16.
template <class A, class B>
void exec_mma(Warp& w, const Inst& i, u32 m) {
  if (m != kFullMask) throw_warp_error(w, i, m, "deadlock", "mma.sync.aligned executed by lanes " + hex(m) + " only");
  static_assert(A::p == B::p, "operands of one width");
  constexpr int kPanel = 4 * A::p;  // columns of a panel
  bool c_half = i.sub & 1, d_half = i.sub & 2;
  const u32* d_slots = i.ext;
  const u32* a_slots = d_slots + (d_half ? 2 : 4);
  const u32* b_slots = a_slots + i.vec;
  const u32* c_slots = b_slots + i.vec / 2;
  alignas(32) float c[2][64];
  load_accumulator(w, c_slots, c_half, c);
  for (int step = 0; step < i.vec / 2; ++step) {
    alignas(32) float b[8 * kPanel], bt[8 * kPanel], a[8 * kPanel];
    B::load(w.r32(b_slots[step]), b);
    for (int k = 0; k < kPanel; ++k)
      for (int n = 0; n < 8; ++n) bt[8 * k + n] = b[n * kPanel + k];
    for (int h = 0; h < 2; ++h) {
      A::load(w.r32(a_slots[2 * step + h]), a);
      multiply_8x8(c[h], a, kPanel, bt, kPanel);
    }
  }
  store_accumulator(w, d_slots, d_half, c);
}

// Integer tiles: s8/u8 inputs, s32 accumulator (wrapping).
template <class A, class B>
void exec_imma(Warp& w, const Inst& i, u32 m) {
  if (m != kFullMask) throw_warp_error(w, i, m, "deadlock", "mma.sync.aligned executed by lanes " + hex(m) + " only");
  const u32* a_slots = i.ext + 4;
  const u32* b_slots = a_slots + i.vec;
  const u32* c_slots = b_slots + i.vec / 2;
  u32 out[4][kLanes];
  for (int l = 0; l < kLanes; ++l)
    for (int q = 0; q < 4; ++q) {
      int g = l / 4, n = l % 4 * 2 + (q & 1), h = q >> 1;
      u32 sum = w.r32(c_slots[q])[l];
      for (int step = 0; step < i.vec / 2; ++step) {
        const A* a = reinterpret_cast<const A*>(w.r32(a_slots[2 * step + h]) + 4 * g);
        const B* b = reinterpret_cast<const B*>(w.r32(b_slots[step]) + 4 * n);
        for (int k = 0; k < 16; ++k) sum += static_cast<u32>(static_cast<i32>(a[k]) * static_cast<i32>(b[k]));
      }
      out[q][l] = sum;
    }
  for (int q = 0; q < 4; ++q) std::memcpy(w.r32(i.ext[q]), out[q], sizeof out[q]);
}

struct Row {
  const char* shape;
  Ty a, b;
  int a_regs, k;
  ExecFn fn;
};

constexpr Row kRows[] = {
    {"m16n8k8", Ty::F16, Ty::F16, 2, 8, exec_mma<InF16, InF16>},
    {"m16n8k16", Ty::F16, Ty::F16, 4, 16, exec_mma<InF16, InF16>},
    {"m16n8k8", Ty::BF16, Ty::BF16, 2, 8, exec_mma<InBf16, InBf16>},
    {"m16n8k16", Ty::BF16, Ty::BF16, 4, 16, exec_mma<InBf16, InBf16>},
    {"m16n8k4", Ty::TF32, Ty::TF32, 2, 4, exec_mma<InTf32, InTf32>},
    {"m16n8k8", Ty::TF32, Ty::TF32, 4, 8, exec_mma<InTf32, InTf32>},
    {"m16n8k32", Ty::E4M3, Ty::E4M3, 4, 32, exec_mma<InE4m3, InE4m3>},
    {"m16n8k32", Ty::E4M3, Ty::E5M2, 4, 32, exec_mma<InE4m3, InE5m2>},
    {"m16n8k32", Ty::E5M2, Ty::E4M3, 4, 32, exec_mma<InE5m2, InE4m3>},
    {"m16n8k32", Ty::E5M2, Ty::E5M2, 4, 32, exec_mma<InE5m2, InE5m2>},
    {"m16n8k16", Ty::S8, Ty::S8, 2, 16, exec_imma<i8, i8>},
    {"m16n8k32", Ty::S8, Ty::S8, 4, 32, exec_imma<i8, i8>},
    {"m16n8k16", Ty::U8, Ty::U8, 2, 16, exec_imma<u8, u8>},
    {"m16n8k32", Ty::U8, Ty::U8, 4, 32, exec_imma<u8, u8>},
    {"m16n8k32", Ty::U8, Ty::S8, 4, 32, exec_imma<u8, i8>},
    {"m16n8k32", Ty::S8, Ty::U8, 4, 32, exec_imma<i8, u8>},
};

void fragment(Decoding& d, size_t k, size_t regs, bool dst, Ty type, std::vector<u32>* out) {
  const Operand& op = d.op(k);
  std::vector<Operand> elems = op.kind == Operand::Vector ? op.elems : std::vector<Operand>{op};
  if (elems.size() != regs)
    d.malformed("fragment of " + std::to_string(elems.size()) + " registers; " + std::to_string(regs) + " needed");
  for (const Operand& e : elems) out->push_back(dst ? d.dst(e, type) : d.src(e, type));
}

void decode_mma(Decoding& d) {
  if (!d.take("sync") || !d.take("aligned")) d.unsupported("mma without .sync.aligned");
  if (!d.take("row") || !d.take("col")) d.unsupported("mma with these layouts");
  d.take("kind::f8f6f4");
  std::string shape = d.take_any({"m16n8k4", "m16n8k8", "m16n8k16", "m16n8k32"});
  Ty td = d.take_type(), ta = d.take_type(), tb = d.take_type(), tc = d.take_type();
  d.need(4);
  for (const Row& row : kRows) {
    if (shape != row.shape || row.a != ta || row.b != tb) continue;
    if (row.k == 32 && ta != Ty::S8 && ta != Ty::U8) d.require_sm(89, "fp8 mma");
    bool integer = ta == Ty::S8 || ta == Ty::U8, d_half = td == Ty::F16, c_half = tc == Ty::F16;
    if (integer ? td != Ty::S32 || tc != Ty::S32 : (td != Ty::F32 && !d_half) || (tc != Ty::F32 && !c_half)) break;
    if ((d_half || c_half) && ta != Ty::F16 && type_bytes(ta) != 1) break;
    std::vector<u32> slots;
    size_t a_regs = static_cast<size_t>(row.a_regs);
    fragment(d, 0, d_half ? 2 : 4, true, d_half ? Ty::B32 : td, &slots);
    fragment(d, 1, a_regs, false, Ty::B32, &slots);
    fragment(d, 2, a_regs / 2, false, Ty::B32, &slots);
    fragment(d, 3, c_half ? 2 : 4, false, c_half ? Ty::B32 : tc, &slots);
    d.inst.ext = d.builder.keep(slots);
    d.inst.vec = static_cast<u8>(row.a_regs);
    d.inst.sub = static_cast<u8>((c_half ? 1 : 0) | (d_half ? 2 : 0));
    d.inst.flops = static_cast<u32>(2 * 16 * 8 * row.k);
    return d.use(row.fn, Cls::Mma);
  }
  d.unsupported("mma of this shape and these types");
}

}  // namespace

void add_mma_ops(OpTable& t) { t["mma"] = decode_mma; }

}  // namespace ptxsim
