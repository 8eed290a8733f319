// SPDX-License-Identifier: Apache-2.0
// ldmatrix and stmatrix: 8x8 matrices of 16-bit elements between shared memory and the lanes' fragments. Lane l of a
// matrix holds elements 2*(l%4) and 2*(l%4)+1 of row l/4 (of column l/4 with .trans).
#include "memory.hpp"
#include "ops_memory.hpp"
#include "race.hpp"

namespace ptxsim {
namespace {

void check_whole_warp(Warp& w, const Inst& i, u32 m) {
  if (m != kFullMask)
    throw_warp_error(w, i, m, "deadlock", "executed by lanes " + hex(m) + " only: .aligned needs the whole warp");
}

// Row pointers of every matrix; vec: matrices.
void rows(Warp& w, const Inst& i, Access access, u8** out) {
  u64 addresses[kLanes];
  lane_addresses(w, i, i.o[0], i.width[0], i.imm, addresses);
  u32 used = i.vec * 8u, offsets[kLanes] = {};
  for (u32 l = 0; l < used; ++l) {
    u64 address = addresses[l];
    if (i.width[1]) {  // generic address
      if (resolve_generic(&address) != Space::Shared)
        throw_lane_error(w, i, static_cast<int>(l), "memory", address, "row address is not in shared memory");
    }
    offsets[l] = static_cast<u32>(address);
    out[l] = shared_ptr(w, i, static_cast<int>(l), address, 16, access);
  }
  u32 mask = used == 32 ? kFullMask : (1u << used) - 1;
  if (access == Access::Read) race_read(w, i, mask, offsets, 16);
  if (w.worker->launch->stats)
    w.worker->counters.shared_access(access == Access::Read ? SharedPort::Ldmatrix : SharedPort::Stmatrix, offsets,
                                     mask, 16);
}

template <bool kTrans>
void exec_ldmatrix(Warp& w, const Inst& i, u32 m) {
  check_whole_warp(w, i, m);
  u8* row[kLanes];
  rows(w, i, Access::Read, row);
  for (u32 k = 0; k < i.vec; ++k) {
    u16 tile[8][8];
    for (u32 r = 0; r < 8; ++r) std::memcpy(tile[r], row[k * 8 + r], 16);
    u32* d = w.r32(i.ext[k]);
    for (int l = 0; l < kLanes; ++l) {
      int a = l / 4, b = l % 4 * 2;
      d[l] = kTrans ? tile[b][a] | static_cast<u32>(tile[b + 1][a]) << 16
                    : tile[a][b] | static_cast<u32>(tile[a][b + 1]) << 16;
    }
  }
}

template <bool kTrans>
void exec_stmatrix(Warp& w, const Inst& i, u32 m) {
  check_whole_warp(w, i, m);
  u8* row[kLanes];
  rows(w, i, Access::Write, row);
  u16 data[kLanes][8];
  for (u32 k = 0; k < i.vec; ++k) {
    u16(*tile)[8] = data + 8 * k;
    const u32* s = w.r32(i.ext[k]);
    for (int l = 0; l < kLanes; ++l) {
      int a = l / 4, b = l % 4 * 2;
      (kTrans ? tile[b][a] : tile[a][b]) = static_cast<u16>(s[l]);
      (kTrans ? tile[b + 1][a] : tile[a][b + 1]) = static_cast<u16>(s[l] >> 16);
    }
  }
  u32 used = i.vec * 8u, changed = 0, offsets[kLanes] = {};
  for (u32 r = 0; r < used; ++r) {
    offsets[r] = static_cast<u32>(row[r] - w.cta->smem.data());
    if (std::memcmp(row[r], data[r], 16) != 0) changed |= 1u << r;
  }
  race_write(w, i, used == 32 ? kFullMask : (1u << used) - 1, offsets, 16, changed);
  for (u32 r = 0; r < used; ++r) std::memcpy(row[r], data[r], 16);
}

void decode_matrix(Decoding& d) {
  bool load = d.raw.opcode == "ldmatrix";
  if (!load) d.require_sm(90, "stmatrix");
  if (!d.take("sync") || !d.take("aligned")) d.unsupported(d.raw.opcode + " without .sync.aligned");
  if (!d.take("m8n8")) d.unsupported(d.raw.opcode + " of this shape");
  std::string num = d.take_any({"x1", "x2", "x4"});
  bool trans = d.take("trans");
  Space space;
  take_space_suffix(d, &space);
  if (!d.take("b16") || num.empty()) d.unsupported("this " + d.raw.opcode);
  if (space != Space::Shared && space != Space::Generic) d.unsupported(d.raw.opcode + " of this state space");
  d.need(2);
  d.inst.vec = static_cast<u8>(num[1] - '0');
  const Operand& data = d.op(load ? 0 : 1);
  d.inst.o[0] = address_slot(d, d.op(load ? 1 : 0), &space, &d.inst.width[0]);
  d.inst.width[1] = space == Space::Generic;
  std::vector<Operand> elems = data.kind == Operand::Vector ? data.elems : std::vector<Operand>{data};
  if (elems.size() != d.inst.vec) d.malformed("fragment of " + std::to_string(elems.size()) + " registers");
  std::vector<u32> slots;
  for (const Operand& e : elems) slots.push_back(load ? d.dst(e, Ty::B32) : d.src(e, Ty::B32));
  d.inst.ext = d.builder.keep(slots);
  if (load)
    d.use(trans ? exec_ldmatrix<true> : exec_ldmatrix<false>, Cls::Ldmatrix);
  else
    d.use(trans ? exec_stmatrix<true> : exec_stmatrix<false>, Cls::Stmatrix);
}

}  // namespace

void add_matrix_ops(OpTable& t) { t["ldmatrix"] = t["stmatrix"] = decode_matrix; }

}  // namespace ptxsim
