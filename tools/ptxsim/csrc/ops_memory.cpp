// SPDX-License-Identifier: Apache-2.0
// ld and st of every state space, scalar and vector. Cache hints, eviction priorities and prefetch sizes are accepted
// and have no effect; memory ordering qualifiers have none either, since a CTA's accesses take effect in order.
#include "ops_memory.hpp"

#include "memory.hpp"
#include "race.hpp"

namespace ptxsim {

bool take_space_suffix(Decoding& d, Space* space) {
  struct {
    const char* mod;
    Space space;
  } rows[] = {{"global", Space::Global},     {"shared", Space::Shared}, {"shared::cta", Space::Shared},
              {"local", Space::Local},       {"const", Space::Const},   {"param", Space::Param},
              {"param::entry", Space::Param}};
  for (auto& row : rows)
    if (d.take(row.mod)) return *space = row.space, true;
  *space = Space::Generic;
  return false;
}

bool take_cache_hints(Decoding& d) {
  for (const char* mod : {"ca", "cg", "cs", "cv", "lu", "wb", "wt", "nc", "L1::evict_normal", "L1::evict_unchanged",
                          "L1::evict_first", "L1::evict_last", "L1::no_allocate", "L2::evict_normal", "L2::evict_first",
                          "L2::evict_last", "L2::64B", "L2::128B", "L2::256B"})
    d.take(mod);
  return d.take("L2::cache_hint");
}

bool take_ordering(Decoding& d) {
  bool ordered = false;
  for (const char* mod : {"volatile", "relaxed", "acquire", "release", "acq_rel", "sc", "mmio"})
    ordered = d.take(mod) || ordered;
  for (const char* mod : {"weak", "cta", "cluster", "gpu", "sys"}) d.take(mod);
  return ordered;
}

u32 address_slot(Decoding& d, const Operand& op, Space* space, u8* width) {
  if (op.kind != Operand::Memory || op.elems.size() != 1) d.malformed("operand is not an address");
  const Operand& base = op.elems[0];
  d.inst.imm = op.offset;
  *width = 64;
  if (base.kind == Operand::Reg) {
    *width = static_cast<u8>(d.builder.reg_width(base.reg));
    if (*width != 32 && *width != 64) d.malformed("address register is neither 32 nor 64 bits wide");
    return d.builder.reg_slot(base.reg);
  }
  if (base.kind == Operand::Int) return d.builder.const_slot(base.bits, 64);
  if (base.kind != Operand::Symbol) d.malformed("operand is not an address");
  Space own;
  u32 slot = d.builder.symbol_slot(base, d.raw.scope, 64, &own);
  if (*space == Space::Generic && (own == Space::Shared || own == Space::Local)) *space = own;
  return slot;
}

void lane_addresses(const Warp& w, const Inst& i, u32 slot, u8 width, i64 offset, u64* out) {
  (void)i;
  if (width == 64) {
    const u64* p = w.r64(slot);
    for (int l = 0; l < kLanes; ++l) out[l] = p[l] + static_cast<u64>(offset);
  } else {
    const u32* p = w.r32(slot);
    for (int l = 0; l < kLanes; ++l) out[l] = static_cast<u32>(p[l] + static_cast<u32>(offset));
  }
}

namespace {

// o[0]: address slot; width[0]: address bits; width[1]: register bits of the data; sub: signed; ext: data slots;
// pneg: the access is ordered (volatile, relaxed, ...).
template <Space kSpace>
void count_access(Warp& w, const Inst& i, const u64* addresses, u32 m, bool write) {
  if (!w.worker->launch->stats) return;
  Counters& c = w.worker->counters;
  u32 bytes = static_cast<u32>(i.bytes) * i.vec;
  if constexpr (kSpace == Space::Global) c.global_access(write, addresses, m, bytes);
  if constexpr (kSpace == Space::Shared) {
    u32 offsets[kLanes];
    for (int l = 0; l < kLanes; ++l) offsets[l] = static_cast<u32>(addresses[l]);
    c.shared_access(write ? SharedPort::St : SharedPort::Ld, offsets, m, bytes);
  }
  if constexpr (kSpace == Space::Generic) {
    u32 shared = 0, global = 0, offsets[kLanes];
    for (u32 left = m; left; left &= left - 1) {
      int l = __builtin_ctz(left);
      u64 a = addresses[l];
      Space s = resolve_generic(&a);
      offsets[l] = static_cast<u32>(a);
      if (s == Space::Shared) shared |= 1u << l;
      if (s == Space::Global) global |= 1u << l;
    }
    if (shared) c.shared_access(write ? SharedPort::St : SharedPort::Ld, offsets, shared, bytes);
    if (global) c.global_access(write, addresses, global, bytes);
  }
}

template <u32 kBytes>
bool all_written(const u8* state, const u32* offsets, u32 m) {
  bool ok = true;
  for (u32 left = m; left; left &= left - 1) ok &= bytes_written(state + offsets[__builtin_ctz(left)], kBytes);
  return ok;
}

bool all_written(const u8* state, const u32* offsets, u32 m, u32 bytes) {
  switch (bytes) {
    case 4:
      return all_written<4>(state, offsets, m);
    case 8:
      return all_written<8>(state, offsets, m);
    case 16:
      return all_written<16>(state, offsets, m);
    default:
      for (u32 left = m; left; left &= left - 1)
        if (!bytes_written(state + offsets[__builtin_ctz(left)], bytes)) return false;
      return true;
  }
}

// Shared memory, all lanes at once; shared_ptr repeats the checks lane by lane when one of them fails.
void resolve_shared(Warp& w, const Inst& i, u32 m, Access access, const u64* addresses, u8** pointers) {
  Cta& cta = *w.cta;
  const u32 bytes = static_cast<u32>(i.bytes) * i.vec;
  const u64 size = cta.smem.size();
  u32 offsets[kLanes];
  u64 bad = 0;
  for (int l = 0; l < kLanes; ++l) {
    u64 wrong = (addresses[l] & (bytes - 1)) | (addresses[l] + bytes > size || addresses[l] > size ? 1u : 0u);
    bad |= (m >> l & 1) ? wrong : 0;
    offsets[l] = static_cast<u32>(addresses[l]);
    pointers[l] = cta.smem.data() + offsets[l];
  }
  bool read = access == Access::Read;
  if (bad || (read && w.worker->launch->check_init && !all_written(cta.smem_state.data(), offsets, m, bytes)))
    for (u32 left = m; left; left &= left - 1)
      shared_ptr(w, i, __builtin_ctz(left), addresses[__builtin_ctz(left)], bytes, access);
  if (!read)
    for (u32 left = m; left; left &= left - 1)
      mark_written(w, i, __builtin_ctz(left), offsets[__builtin_ctz(left)], bytes);
  // Ordered accesses (volatile, relaxed, ...) are synchronization, not data. Stores: see check_store.
  if (read && !i.pneg) race_read(w, i, m, offsets, bytes);
}

template <Space kSpace>
void resolve_mixed(Warp& w, const Inst& i, u32 m, Access access, const u64* addresses, u8** pointers) {
  u32 shared = 0, offsets[kLanes] = {}, bytes = static_cast<u32>(i.bytes) * i.vec;
  for (u32 left = m; left; left &= left - 1) {
    int l = __builtin_ctz(left);
    u64 address = addresses[l];
    if constexpr (kSpace == Space::Cluster) {
      if (!(address >> kClusterShift)) shared |= 1u << l, offsets[l] = static_cast<u32>(address);
    } else if (resolve_generic(&address) == Space::Shared && !(address >> kClusterShift)) {
      shared |= 1u << l, offsets[l] = static_cast<u32>(address);
    }
    pointers[l] = space_ptr(w, i, l, kSpace, addresses[l], bytes, access);
  }
  if (shared && !i.pneg && access == Access::Read) race_read(w, i, shared, offsets, bytes);
}

// Race check of a store: which lanes hit shared memory, and which of them change what is there.
void check_store(Warp& w, const Inst& i, u32 m, u8* const* pointers) {
  const u8* base = w.cta->smem.data();
  const u64 size = w.cta->smem.size();
  u32 shared = 0, changed = 0, offsets[kLanes] = {};
  for (u32 left = m; left; left &= left - 1) {
    int l = __builtin_ctz(left);
    u64 offset = static_cast<u64>(pointers[l] - base);
    if (offset >= size) continue;
    shared |= 1u << l, offsets[l] = static_cast<u32>(offset);
    for (u32 k = 0; k < i.vec; ++k) {
      const void* value = i.width[1] == 64 ? static_cast<const void*>(w.r64(i.ext[k]) + l) : w.r32(i.ext[k]) + l;
      if (std::memcmp(pointers[l] + k * i.bytes, value, i.bytes) != 0) changed |= 1u << l;
    }
  }
  if (shared) race_write(w, i, shared, offsets, static_cast<u32>(i.bytes) * i.vec, changed);
}

template <Space kSpace>
void resolve(Warp& w, const Inst& i, u32 m, Access access, u8** pointers) {
  u64 addresses[kLanes];
  lane_addresses(w, i, i.o[0], i.width[0], i.imm, addresses);
  u32 bytes = static_cast<u32>(i.bytes) * i.vec;
  if constexpr (kSpace == Space::Shared) {
    resolve_shared(w, i, m, access, addresses, pointers);
  } else if constexpr (kSpace == Space::Generic || kSpace == Space::Cluster) {
    resolve_mixed<kSpace>(w, i, m, access, addresses, pointers);
  } else {
    for (u32 left = m; left; left &= left - 1) {
      int l = __builtin_ctz(left);
      pointers[l] = space_ptr(w, i, l, kSpace, addresses[l], bytes, access);
    }
  }
  count_access<kSpace>(w, i, addresses, m, access == Access::Write);
}

template <class E, class S>
void load_elements(Warp& w, const Inst& i, u32 m, u8** pointers) {
  for (u32 k = 0; k < i.vec; ++k) {
    S* d = slot_ptr<S>(w, i.ext[k]);
    for (u32 left = m; left; left &= left - 1) {
      int l = __builtin_ctz(left);
      E value;
      std::memcpy(&value, pointers[l] + k * sizeof(E), sizeof(E));
      d[l] = static_cast<S>(value);
    }
  }
}

template <Space kSpace>
void exec_ld(Warp& w, const Inst& i, u32 m) {
  u8* pointers[kLanes];
  resolve<kSpace>(w, i, m, Access::Read, pointers);
  bool wide = i.width[1] == 64;
  switch (i.bytes) {
    case 8:
      return load_elements<u64, u64>(w, i, m, pointers);
    case 4:
      if (!wide) return load_elements<u32, u32>(w, i, m, pointers);
      return i.sub ? load_elements<i32, u64>(w, i, m, pointers) : load_elements<u32, u64>(w, i, m, pointers);
    case 2:
      if (wide) return i.sub ? load_elements<i16, u64>(w, i, m, pointers) : load_elements<u16, u64>(w, i, m, pointers);
      if (i.sub && i.width[1] == 32) return load_elements<i16, u32>(w, i, m, pointers);
      return load_elements<u16, u32>(w, i, m, pointers);
    default:
      if (wide) return i.sub ? load_elements<i8, u64>(w, i, m, pointers) : load_elements<u8, u64>(w, i, m, pointers);
      if (i.sub)
        load_elements<i8, u32>(w, i, m, pointers);
      else
        load_elements<u8, u32>(w, i, m, pointers);
      if (i.sub && i.width[1] == 16)
        for (u32 k = 0; k < i.vec; ++k)
          for (int l = 0; l < kLanes; ++l) w.r32(i.ext[k])[l] &= 0xffff;
  }
}

template <Space kSpace>
void exec_st(Warp& w, const Inst& i, u32 m) {
  u8* pointers[kLanes];
  resolve<kSpace>(w, i, m, Access::Write, pointers);
  constexpr bool kMayBeShared = kSpace == Space::Shared || kSpace == Space::Generic || kSpace == Space::Cluster;
  if (kMayBeShared && !i.pneg && w.worker->launch->check_races) check_store(w, i, m, pointers);
  for (u32 k = 0; k < i.vec; ++k) {
    const u64* wide = w.r64(i.ext[k]);
    const u32* narrow = w.r32(i.ext[k]);
    for (u32 left = m; left; left &= left - 1) {
      int l = __builtin_ctz(left);
      u8* to = pointers[l] + k * i.bytes;
      if (i.width[1] == 64)
        std::memcpy(to, &wide[l], i.bytes);
      else
        std::memcpy(to, &narrow[l], i.bytes);
    }
  }
}

// ld of kernel parameters at an address that the decoder knew: one read for the warp.
void exec_ld_param(Warp& w, const Inst& i, u32 m) {
  Launch& launch = *w.worker->launch;
  u64 offset = static_cast<u64>(i.imm);
  u32 bytes = static_cast<u32>(i.bytes) * i.vec;
  if (offset + bytes > launch.entry->param_bytes || offset % bytes)
    throw_warp_error(w, i, m, "memory",
                     "parameter byte " + std::to_string(offset) + " is outside the " +
                         std::to_string(launch.entry->param_bytes) + " B of parameters or misaligned");
  for (u32 k = 0; k < i.vec; ++k) {
    u64 value = 0;
    std::memcpy(&value, launch.params + offset + k * i.bytes, i.bytes);
    if (i.sub && i.bytes < 8 && (value >> (8 * i.bytes - 1) & 1)) value |= ~0ull << (8 * i.bytes);
    if (i.width[1] == 16) value &= 0xffff;
    if (i.width[1] == 64)
      lanes<u64>(w, i.ext[k], m, [&](int) { return value; });
    else
      lanes<u32>(w, i.ext[k], m, [&](int) { return static_cast<u32>(value); });
  }
}

Cls class_of(Space space, bool load) {
  switch (space) {
    case Space::Global:
      return load ? Cls::LdGlobal : Cls::StGlobal;
    case Space::Shared:
      return load ? Cls::LdShared : Cls::StShared;
    case Space::Cluster:
      return load ? Cls::LdShared : Cls::StShared;
    case Space::Local:
      return load ? Cls::LdLocal : Cls::StLocal;
    case Space::Const:
      return Cls::LdConst;
    case Space::Param:
      return Cls::LdParam;
    default:
      return load ? Cls::LdGeneric : Cls::StGeneric;
  }
}

ExecFn load_fn(Space space) {
  switch (space) {
    case Space::Shared:
      return exec_ld<Space::Shared>;
    case Space::Cluster:
      return exec_ld<Space::Cluster>;
    case Space::Local:
      return exec_ld<Space::Local>;
    case Space::Generic:
      return exec_ld<Space::Generic>;
    case Space::Global:
      return exec_ld<Space::Global>;
    default:
      return exec_ld<Space::Const>;  // const and param: checked as global memory, not counted as traffic
  }
}

ExecFn store_fn(Space space) {
  switch (space) {
    case Space::Shared:
      return exec_st<Space::Shared>;
    case Space::Cluster:
      return exec_st<Space::Cluster>;
    case Space::Local:
      return exec_st<Space::Local>;
    case Space::Generic:
      return exec_st<Space::Generic>;
    case Space::Global:
      return exec_st<Space::Global>;
    default:
      return nullptr;
  }
}

// Data operand: a register, an immediate (stores) or a vector of them.
void data_operands(Decoding& d, const Operand& op, Ty type, bool load) {
  std::vector<Operand> elems = d.inst.vec > 1 || op.kind == Operand::Vector ? op.elems : std::vector<Operand>{op};
  if (elems.size() != d.inst.vec) d.malformed("vector operand of " + std::to_string(elems.size()) + " elements");
  std::vector<u32> slots;
  d.inst.width[1] = static_cast<u8>(std::max(16, type_bytes(type) * 8));
  for (const Operand& e : elems) {
    if (e.kind == Operand::Reg) d.inst.width[1] = static_cast<u8>(d.builder.reg_width(e.reg));
  }
  for (const Operand& e : elems) {
    if (e.kind == Operand::Reg && d.builder.reg_width(e.reg) != d.inst.width[1])
      d.malformed("vector of mixed register widths");
    bool literal = e.kind != Operand::Reg && e.kind != Operand::Sink;
    if (literal && !load)
      slots.push_back(d.inst.width[1] == 64 ? d.src(e, type_bytes(type) == 8 ? type : Ty::B64) : d.src(e, type));
    else
      slots.push_back(load ? d.dst(e, e.kind == Operand::Sink && d.inst.width[1] == 64 ? Ty::B64 : type, true)
                           : d.src(e, type, true));
  }
  d.inst.ext = d.builder.keep(slots);
}

void decode_ld_st(Decoding& d) {
  bool load = d.raw.opcode != "st";
  Space space;
  d.inst.pneg = take_ordering(d);
  if (d.take("shared::cluster"))
    space = Space::Cluster, d.require_sm(90, "shared::cluster");
  else
    take_space_suffix(d, &space);
  bool hint = take_cache_hints(d);
  d.take("unified");
  std::string vec = d.take_any({"v2", "v4", "v8"});
  d.inst.vec = vec.empty() ? 1 : static_cast<u8>(vec[1] - '0');
  Ty type = d.take_type();
  if (type == Ty::Pred || type == Ty::B128) d.unsupported(d.raw.opcode + " of ." + type_name(type));
  d.need(hint ? 3 : 2);
  d.inst.bytes = static_cast<u8>(type_bytes(type));
  if (d.inst.bytes * d.inst.vec > 32) d.malformed("vector access wider than 32 B");
  d.inst.sub = is_signed(type);
  const Operand& address = d.op(load ? 1 : 0);
  d.inst.o[0] = address_slot(d, address, &space, &d.inst.width[0]);
  data_operands(d, d.op(load ? 0 : 1), type, load);
  if (load && space == Space::Param && address.elems[0].kind == Operand::Symbol) {
    for (const Param& p : d.builder.entry().params)
      if (p.name == address.elems[0].name) {
        d.inst.imm = static_cast<i64>(p.offset) + address.offset;
        return d.use(exec_ld_param, Cls::LdParam);
      }
  }
  d.use(load ? load_fn(space) : store_fn(space), class_of(space, load));
}

}  // namespace

void add_memory_ops(OpTable& t) { t["ld"] = t["st"] = t["ldu"] = decode_ld_st; }

}  // namespace ptxsim
