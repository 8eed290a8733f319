// SPDX-License-Identifier: Apache-2.0
// wgmma: mma_async, fence, commit_group, wait_group. An operation reads its operands and writes its accumulators when
// the first warp of the warpgroup waits for it (in random mode sometimes earlier), for all four warps at once. Until a
// warp has waited itself, its registers of the operation are locked, and wgmma.fence is asked for wherever anything
// else has written them.
//
// Shared-memory operands, in 16-byte units of T elements, LBO and SBO from the descriptor:
//   K-major, row r = 8m + r', unit u of 2:      m*SBO + r'*16W + u*16 (no swizzle: r'*16 + u*LBO)
//   MN-major, unit r/T = W*m + v, k = 8q + k':  v*16 + m*LBO + k'*16W + q*SBO (no swizzle: m*SBO + k'*16 + q*LBO)
// where a row of a swizzle atom has W = 2, 4, 8 units; then the unit's number is xored with the row within the atom,
// taken from address bits 7 and up, less the base offset.
#include <algorithm>

#include "async.hpp"
#include "executor.hpp"
#include "memory.hpp"
#include "ops_shared.hpp"
#include "race.hpp"
#include "tensor_core.hpp"

namespace ptxsim {
namespace {

enum Sub : u8 { kHalfD = 1, kRegA = 2, kTransA = 4, kTransB = 8, kNegA = 16, kNegB = 32 };

size_t d_count(const Inst& i) { return static_cast<size_t>(i.vec) * ((i.sub & kHalfD) ? 2 : 4); }

std::string at_line(const Entry& entry, const Inst& i) {
  return "PTX line " + std::to_string(entry.lines[i.index]) + " (" + entry.texts[i.index].substr(0, 70) +
         (entry.texts[i.index].size() > 70 ? "...)" : ")");
}

struct Descriptor {
  u32 start, leading, stride, base, width;  // width: units per atom row, 1 without swizzle
  explicit Descriptor(u64 d)
      : start(static_cast<u32>(d & 0x3fff) << 4),
        leading(static_cast<u32>(d >> 16 & 0x3fff) << 4),
        stride(static_cast<u32>(d >> 32 & 0x3fff) << 4),
        base(static_cast<u32>(d >> 49 & 7)) {
    constexpr u32 kWidths[] = {1, 8, 4, 2};
    width = kWidths[d >> 62];
  }
  u32 swizzled(u32 address) const { return address ^ ((((address >> 7) - base) & (width - 1)) << 4); }
  // Unit u of the 32 bytes along K of row r.
  u32 k_major(u32 r, u32 u) const {
    u32 at = start + r / 8 * stride + r % 8 * 16 * width + (width == 1 ? u * leading : u * 16);
    return swizzled(at);
  }
  // The unit with rows T*unit and up, at column k.
  u32 mn_major(u32 unit, u32 k) const {
    if (width == 1) return start + unit * stride + k % 8 * 16 + k / 8 * leading;
    return swizzled(start + unit % width * 16 + unit / width * leading + k % 8 * 16 * width + k / 8 * stride);
  }
};

void convert_unit(const u8* p, Ty type, float* out) {
  switch (type) {
    case Ty::F16:
      return halves_to_floats(reinterpret_cast<const u16*>(p), out, 8);
    case Ty::BF16:
      return bf16s_to_floats(reinterpret_cast<const u16*>(p), out, 8);
    case Ty::E4M3:
      return e4m3s_to_floats(p, out, 16);
    case Ty::E5M2:
      return e5m2s_to_floats(p, out, 16);
    default:
      for (int k = 0; k < 4; ++k) {
        u32 bits;
        std::memcpy(&bits, p + 4 * k, 4);
        out[k] = bit_cast<float>(bits & 0xffffe000u);  // tf32: the low 13 bits are ignored
      }
  }
}

class Executor {
 public:
  Executor(Warp& w, const MatrixOp& op, u32 first_warp, u32 now)
      : w_(w), op_(op), i_(*op.inst), first_(first_warp), now_(now), k_(static_cast<u32>(i_.imm)) {}

  void run() {
    load_b();
    if (!(i_.sub & kRegA)) load_a();
    for (u32 q = 0; q < kWarpgroupWarps; ++q) {
      Warp& warp = w_.cta->warps[first_ + q];
      if (i_.sub & kRegA) load_a_registers(warp, q);
      for (u32 h = 0; h < 2; ++h)
        for (u32 j = 0; j < i_.vec; ++j) tile(warp, a_ + (16 * q + 8 * h) * k_, j, h);
    }
  }

 private:
  const u8* unit(u32 offset, const Clock& clock) {
    shared_ptr(w_, i_, 0, offset, 16, Access::Read);
    race_async_read(w_, i_, clock, now_, offset, 16);
    return w_.cta->smem.data() + offset;
  }

  void load_b() {
    Descriptor d(op_.b);
    Ty type = static_cast<Ty>(i_.width[1]);
    float row[16];
    u32 t = 16u / i_.bytes;
    float sign = (i_.sub & kNegB) ? -1.0f : 1.0f;
    for (u32 j = 0; j < i_.vec; ++j) {
      float* block = b_ + j * k_ * 8;
      if (i_.sub & kTransB) {
        for (u32 k = 0; k < k_; ++k) convert_unit(unit(d.mn_major(j, k), op_.clocks[0]), type, block + 8 * k);
      } else {
        for (u32 n = 0; n < 8; ++n)
          for (u32 u = 0; u < 2; ++u) {
            convert_unit(unit(d.k_major(8 * j + n, u), op_.clocks[0]), type, row);
            for (u32 e = 0; e < t; ++e) block[8 * (u * t + e) + n] = row[e];
          }
      }
      if (sign < 0)
        for (u32 e = 0; e < 8 * k_; ++e) block[e] = -block[e];
    }
  }

  void load_a() {
    Descriptor d(op_.a);
    Ty type = static_cast<Ty>(i_.width[0]);
    u32 t = 16u / i_.bytes;
    float column[16];
    if (i_.sub & kTransA) {
      for (u32 block = 0; block < 8; ++block)
        for (u32 k = 0; k < k_; ++k) {
          convert_unit(unit(d.mn_major(block, k), op_.clocks[block / 2]), type, column);
          for (u32 e = 0; e < 8; ++e) a_[(8 * block + e) * k_ + k] = column[e];
        }
    } else {
      for (u32 r = 0; r < 64; ++r)
        for (u32 u = 0; u < 2; ++u) convert_unit(unit(d.k_major(r, u), op_.clocks[r / 16]), type, a_ + r * k_ + u * t);
    }
    negate_a(0, 64);
  }

  // Register r of A: row g + 8*(r%2), columns p*t + 4p*(r/2) and up, p elements.
  void load_a_registers(const Warp& warp, u32 q) {
    const u32* slots = i_.ext + d_count(i_);
    u32 p = 4u / i_.bytes;
    for (u32 r = 0; r < 4; ++r) {
      const u8* bytes = reinterpret_cast<const u8*>(warp.r32(slots[r]));
      alignas(32) float values[16];
      for (u32 g = 0; g < 8; ++g) {
        convert_unit(bytes + 16 * g, static_cast<Ty>(i_.width[0]), values);
        std::memcpy(a_ + (16 * q + g + 8 * (r % 2)) * k_ + 4 * p * (r / 2), values, 4 * p * sizeof(float));
      }
    }
    negate_a(16 * q, 16 * q + 16);
  }

  void negate_a(u32 begin, u32 end) {
    if (i_.sub & kNegA)
      for (u32 e = begin * k_; e < end * k_; ++e) a_[e] = -a_[e];
  }

  void tile(Warp& warp, const float* a, u32 j, u32 h) {
    alignas(32) float c[64] = {};
    if (i_.sub & kHalfD) {
      u16* d = reinterpret_cast<u16*>(warp.r32(i_.ext[2 * j + h]));
      if (op_.accumulate) halves_to_floats(d, c, 64);
      multiply_8x8(c, a, static_cast<int>(k_), b_ + j * k_ * 8, static_cast<int>(k_));
      for (int e = 0; e < 64; ++e) d[e] = float_to_half(c[e]);
      return;
    }
    u32* even = warp.r32(i_.ext[4 * j + 2 * h]);
    u32* odd = warp.r32(i_.ext[4 * j + 2 * h + 1]);
    if (op_.accumulate)
      for (int l = 0; l < kLanes; ++l) c[2 * l] = bit_cast<float>(even[l]), c[2 * l + 1] = bit_cast<float>(odd[l]);
    multiply_8x8(c, a, static_cast<int>(k_), b_ + j * k_ * 8, static_cast<int>(k_));
    for (int l = 0; l < kLanes; ++l) {
      even[l] = bit_cast<u32>(canonical_nan(c[2 * l]));
      odd[l] = bit_cast<u32>(canonical_nan(c[2 * l + 1]));
    }
  }

  Warp& w_;
  const MatrixOp& op_;
  const Inst& i_;
  u32 first_, now_, k_;
  alignas(32) float a_[64 * 32];
  alignas(32) float b_[256 * 32];
};

// ---- register locks: (1 + instruction) * 2 + (1 if it is an A fragment)
void lock_registers(Warp& w, const Inst& i) {
  size_t d = d_count(i), a = (i.sub & kRegA) ? 4 : 0;
  for (size_t k = 0; k < d + a; ++k) w.register_lock[i.ext[k] / kLanes] = (i.index + 1) * 2 + (k >= d);
}

void unlock_until(Warp& w, u64 done) {
  size_t n = static_cast<size_t>(done - w.matrix_done);
  for (size_t k = 0; k < n; ++k) {
    const Inst& i = *w.matrix_ops[k];
    size_t all = d_count(i) + ((i.sub & kRegA) ? 4 : 0);
    for (size_t e = 0; e < all; ++e) w.register_lock[i.ext[e] / kLanes] = 0;
  }
  w.matrix_ops.erase(w.matrix_ops.begin(), w.matrix_ops.begin() + static_cast<std::ptrdiff_t>(n));
  for (const Inst* i : w.matrix_ops) lock_registers(w, *i);
  w.matrix_done = done;
}

[[noreturn]] void locked(Warp& w, const Inst& i, u32 lock, const char* how) {
  const Entry& entry = *w.worker->launch->entry;
  throw_warp_error(w, i, w.active, "wgmma",
                   std::string(how) + " a register that an in-flight wgmma " + (lock & 1 ? "reads as its A fragment" : "accumulates into") +
                       ": it was issued at " + at_line(entry, entry.insts[lock / 2 - 1]) +
                       " and no wgmma.wait_group covers it yet");
}

void check_registers(Warp& w, const Inst& i, u32 m) {
  const Entry& entry = *w.worker->launch->entry;
  size_t d = d_count(i), all = d + ((i.sub & kRegA) ? 4 : 0);
  if (!w.fence_epoch)
    throw_warp_error(w, i, m, "wgmma", "no wgmma.fence precedes the warp's first wgmma.mma_async");
  for (size_t k = 0; k < all; ++k) {
    u32 reg = i.ext[k] / kLanes, lock = w.register_lock[reg];
    if (lock) {
      const Inst& owner = entry.insts[lock / 2 - 1];
      bool same = k < d && !(lock & 1) && owner.vec == i.vec && owner.ext[0] == i.ext[0] && d_count(owner) == d;
      bool shared_a = k >= d && (lock & 1);
      if (!same && !shared_a) locked(w, i, lock, "uses, other than as the accumulator of the same shape,");
    } else if (w.register_epoch[reg] > w.fence_epoch) {
      throw_warp_error(w, i, m, "wgmma",
                       std::string(k < d ? "an accumulator register" : "an A register") +
                           " was written after the last wgmma.fence: a wgmma.fence is missing before this instruction");
    }
  }
}

u64 uniform64(Warp& w, const Inst& i, u32 slot, const char* what) {
  const u64* p = w.r64(slot);
  for (int l = 1; l < kLanes; ++l)
    if (p[l] != p[0])
      throw_lane_error(w, i, l, "wgmma", 0, std::string("lanes of one warp disagree about the ") + what);
  return p[0];
}

// ext: D slots, then 4 A slots; o[0] A descriptor, o[1] B descriptor, o[2] scale-d; vec: N / 8; imm: K; bytes: of an
// element; width: Ty of A and B.
void exec_mma_async(Warp& w, const Inst& i, u32 m) {
  if (m != kFullMask) throw_warp_error(w, i, m, "deadlock", "wgmma.mma_async executed by lanes " + hex(m) + " only");
  Cta& cta = *w.cta;
  u32 index = w.id / kWarpgroupWarps, first = index * kWarpgroupWarps;
  if (first + kWarpgroupWarps > cta.warps.size())
    throw_warp_error(w, i, m, "wgmma", "the CTA has no four warps " + std::to_string(first) + " to " +
                                           std::to_string(first + 3) + " that would form the warpgroup");
  check_registers(w, i, m);
  u64 a = (i.sub & kRegA) ? 0 : uniform64(w, i, i.o[0], "A descriptor"), b = uniform64(w, i, i.o[1], "B descriptor");
  u32 scale = read_pred(w, i, i.o[2], 2);
  if (scale != 0 && scale != kFullMask) throw_warp_error(w, i, m, "wgmma", "lanes of one warp disagree about scale-d");
  Warpgroup& group = cta.warpgroups[index];
  u64 number = w.matrix_issued++ - group.first;
  while (group.ops.size() <= number) group.ops.emplace_back();
  MatrixOp& op = group.ops[number];
  if (!op.inst) {
    op.inst = &i, op.a = a, op.b = b, op.accumulate = scale != 0;
  } else if (op.inst != &i || op.a != a || op.b != b || op.accumulate != (scale != 0)) {
    const Entry& entry = *w.worker->launch->entry;
    throw_warp_error(w, i, m, "wgmma",
                     op.inst != &i ? "the warps of the warpgroup execute different wgmma instructions: another warp's is at " +
                                         at_line(entry, *op.inst)
                                   : "the warps of the warpgroup pass different descriptors or scale-d");
  }
  op.joined |= 1u << (w.id - first);
  op.clocks[w.id - first] = race_clock(w);
  w.matrix_ops.push_back(&i);
  lock_registers(w, i);
  wake_warpgroup(cta, first);
}

void exec_fence(Warp& w, const Inst& i, u32 m) {
  if (m != kFullMask) throw_warp_error(w, i, m, "deadlock", "wgmma.fence executed by lanes " + hex(m) + " only");
  ++w.fence_epoch;
}

void exec_commit(Warp& w, const Inst& i, u32 m) {
  if (m != kFullMask) throw_warp_error(w, i, m, "deadlock", "wgmma.commit_group executed by lanes " + hex(m) + " only");
  w.matrix_groups.push_back(w.matrix_issued);
}

// The warp knows of the operations that it has waited for, not of later ones that another warp's wait has made happen.
void know_completions(Warp& w, Warpgroup& group, u32 first) {
  for (const MatrixCompletion& c : group.completions)
    if (c.begin < w.matrix_done) w.known_times[c.warp] = std::max(w.known_times[c.warp], c.time);
  u64 all = w.matrix_done;
  for (u32 q = 0; q < kWarpgroupWarps; ++q) all = std::min(all, w.cta->warps[first + q].matrix_done);
  while (!group.completions.empty() && group.completions.front().end <= all) group.completions.pop_front();
}

void exec_wait(Warp& w, const Inst& i, u32 m) {
  if (m != kFullMask) throw_warp_error(w, i, m, "deadlock", "wgmma.wait_group executed by lanes " + hex(m) + " only");
  size_t keep = static_cast<size_t>(i.imm), groups = w.matrix_groups.size();
  if (groups <= keep) return;
  u64 target = w.matrix_groups[groups - keep - 1];
  if (target > w.matrix_done) {
    u32 first = w.id / kWarpgroupWarps * kWarpgroupWarps;
    Warpgroup& group = w.cta->warpgroups[first / kWarpgroupWarps];
    for (u64 k = group.first; k < target; ++k)
      if (group.ops[k - group.first].joined != 0xf) return suspend_and_retry(w, i, m, WarpState::AtWarpgroup);
    run_matrix_ops(w, group, target);
    unlock_until(w, target);
    know_completions(w, group, first);
  }
  w.matrix_groups.erase(w.matrix_groups.begin(), w.matrix_groups.end() - static_cast<std::ptrdiff_t>(keep));
}

}  // namespace

void run_matrix_ops(Warp& w, Warpgroup& group, u64 end) {
  if (group.first >= end) return;
  u64 begin = group.first;
  u32 now = race_tick(*w.cta), first = w.id / kWarpgroupWarps * kWarpgroupWarps;
  while (group.first < end) {
    Executor(w, group.ops.front(), first, now).run();
    group.ops.pop_front();
    ++group.first;
  }
  group.completions.push_back({begin, end, w.id, now});
  w.known_times[w.id] = race_tick(*w.cta);
}

void wake_warpgroup(Cta& cta, u32 first_warp) {
  for (u32 k = first_warp; k < first_warp + kWarpgroupWarps; ++k)
    if (cta.warps[k].state == WarpState::AtWarpgroup) wake(cta.warps[k]);
}

void finish_matrix_ops(Warp& w) {
  if (w.matrix_ops.empty()) return;
  const Inst& i = *w.matrix_ops.front();
  throw_warp_error(w, i, kFullMask, "wgmma", "the warp exits while this wgmma is in flight: no wgmma.wait_group covers it");
}

void check_touches(Warp& w, const Inst& i) {
  const Entry& entry = *w.worker->launch->entry;
  const u32* list = entry.matrix_touches.data();
  for (u32 k = entry.matrix_index[i.index]; k < entry.matrix_index[i.index + 1]; ++k) {
    u32 reg = list[k] / 2;
    if (__builtin_expect(w.register_lock[reg] != 0, 0))
      locked(w, i, w.register_lock[reg], list[k] & 1 ? "writes" : "reads");
    if (list[k] & 1) w.register_epoch[reg] = w.fence_epoch + 1;
  }
}

namespace {

struct Row {
  Ty a, b;
  u32 k;
};
constexpr Row kRows[] = {
    {Ty::F16, Ty::F16, 16},   {Ty::BF16, Ty::BF16, 16}, {Ty::TF32, Ty::TF32, 8},  {Ty::E4M3, Ty::E4M3, 32},
    {Ty::E4M3, Ty::E5M2, 32}, {Ty::E5M2, Ty::E4M3, 32}, {Ty::E5M2, Ty::E5M2, 32},
};

// "m64n128k16" -> 128, 16.
bool parse_shape(const std::string& shape, u32* n, u32* k) {
  size_t at = shape.find('k');
  if (shape.rfind("m64n", 0) != 0 || at == std::string::npos) return false;
  *n = static_cast<u32>(std::strtoul(shape.c_str() + 4, nullptr, 10));
  *k = static_cast<u32>(std::strtoul(shape.c_str() + at + 1, nullptr, 10));
  return *n >= 8 && *n <= 256 && *n % 8 == 0;
}

i64 immediate(Decoding& d, size_t k) {
  if (d.op(k).kind != Operand::Int) d.malformed("operand " + std::to_string(k) + " is not a constant");
  return static_cast<i64>(d.op(k).bits);
}

void sign_operand(Decoding& d, size_t k, u8 bit) {
  i64 value = immediate(d, k);
  if (value != 1 && value != -1) d.malformed("imm-scale is neither 1 nor -1");
  if (value == -1) d.inst.sub |= bit;
}

void decode_mma_async(Decoding& d) {
  u32 n = 0, k = 0;
  std::string shape;
  for (const std::string& mod : d.left())
    if (mod.rfind("m64n", 0) == 0) shape = mod;
  d.take(shape);
  if (!parse_shape(shape, &n, &k)) d.unsupported("wgmma of this shape");
  std::vector<Ty> types;
  for (const std::string& mod : d.left())
    if (Ty type = type_from_name(mod); type != Ty::None) types.push_back(type);
  if (types.size() != 3) d.unsupported("wgmma of these types");
  for (Ty type : types) d.take(type_name(type));
  const Row* row = nullptr;
  for (const Row& r : kRows)
    if (r.a == types[1] && r.b == types[2] && r.k == k) row = &r;
  bool half = types[0] == Ty::F16;
  if (!row || (!half && types[0] != Ty::F32)) d.unsupported("wgmma of this shape and these types");
  if (half && (row->a == Ty::BF16 || row->a == Ty::TF32)) d.unsupported("wgmma of this shape and these types");
  bool reg_a = d.op(1).kind == Operand::Vector, two_bytes = type_bytes(row->a) == 2;
  d.need(two_bytes ? (reg_a ? 7 : 8) : 6);
  d.inst.sub = static_cast<u8>((half ? kHalfD : 0) | (reg_a ? kRegA : 0));
  d.inst.vec = static_cast<u8>(n / 8), d.inst.imm = k, d.inst.bytes = static_cast<u8>(type_bytes(row->a));
  d.inst.width[0] = static_cast<u8>(row->a), d.inst.width[1] = static_cast<u8>(row->b);
  std::vector<u32> slots;
  if (d.op(0).kind != Operand::Vector || d.op(0).elems.size() != d_count(d.inst))
    d.malformed("D has " + std::to_string(d.op(0).elems.size()) + " registers; " + std::to_string(d_count(d.inst)) + " needed");
  for (const Operand& e : d.op(0).elems) slots.push_back(d.dst(e, half ? Ty::B32 : Ty::F32));
  if (reg_a) {
    if (d.op(1).elems.size() != 4) d.malformed("A has " + std::to_string(d.op(1).elems.size()) + " registers; 4 needed");
    for (const Operand& e : d.op(1).elems) slots.push_back(d.src(e, Ty::B32));
  } else {
    d.inst.o[0] = d.src(1, Ty::B64);
  }
  d.inst.ext = d.builder.keep(slots);
  d.inst.o[1] = d.src(2, Ty::B64);
  d.inst.o[2] = d.pred_src(d.op(3), 2);
  sign_operand(d, 4, kNegA), sign_operand(d, 5, kNegB);
  if (two_bytes) {
    if (!reg_a && immediate(d, 6)) d.inst.sub |= kTransA;
    if (immediate(d, reg_a ? 6 : 7)) d.inst.sub |= kTransB;
  }
  d.inst.flops = 2 * 64 * n * k / kWarpgroupWarps;
  d.use(exec_mma_async, Cls::Wgmma);
}

void decode_wgmma(Decoding& d) {
  if (d.builder.sm() != 90 || !d.builder.arch_specific()) d.unsupported("wgmma (needs .target sm_90a)");
  if (d.raw.mods.empty() || d.raw.mods.back() == "sp") d.unsupported("this wgmma");
  if (!d.take("sync") || !d.take("aligned")) d.unsupported("wgmma without .sync.aligned");
  if (d.take("mma_async")) return decode_mma_async(d);
  if (d.take("fence")) return d.need(0), d.use(exec_fence, Cls::Wgmma);
  if (d.take("commit_group")) return d.need(0), d.use(exec_commit, Cls::Wgmma);
  if (d.take("wait_group")) {
    d.need(1);
    d.inst.imm = immediate(d, 0);
    d.inst.flags |= kControl;
    return d.use(exec_wait, Cls::Wgmma);
  }
  d.unsupported("this wgmma operation");
}

}  // namespace

void add_wgmma_ops(OpTable& t) { t["wgmma"] = decode_wgmma; }

}  // namespace ptxsim
