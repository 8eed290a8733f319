// SPDX-License-Identifier: Apache-2.0
// Bulk copies: cp.async.bulk, cp.async.bulk.tensor, cp.reduce.async.bulk, their groups and prefetches. A copy into
// shared memory lands when every warp of the cluster waits (or polls in vain), the last issued first, or in random mode
// at any time; until then reading its bytes is an error. A copy out of shared memory reads at the wait that guarantees
// it (wait_group.read or wait_group) and writes at wait_group or when the thread exits.
#include <mutex>

#include "async.hpp"
#include "executor.hpp"
#include "memory.hpp"
#include "ops_memory.hpp"
#include "race.hpp"
#include "tensor_map.hpp"

namespace ptxsim {
namespace {

// o[0] shared address, o[1] global address or tensor map, o[2] size, o[3] mbarrier, o[4] CTA mask (kNoPc: none);
// ext: offsets of the first, second and fourth, then the coordinates; sub: rank, 0 without tensor map; vec: reduction;
// bytes: its Ty; width: bits of the shared and of the mbarrier address; pneg: see below.
constexpr u32 kSharedSource = 1, kNarrowSource = 2;
enum Reduction : u8 { kNone, kAdd, kMin, kMax, kInc, kDec, kAnd, kOr, kXor };

u64 lane_value(const Warp& w, u32 slot, u8 width, u32 offset, int lane) {
  i64 delta = static_cast<i32>(offset);
  if (width == 64) return w.r64(slot)[lane] + static_cast<u64>(delta);
  return static_cast<u32>(w.r32(slot)[lane] + static_cast<u32>(delta));
}

void need_multiple(Warp& w, const Inst& i, int lane, u64 value, u32 of, const char* what) {
  if (value % of)
    throw_lane_error(w, i, lane, "misaligned", value,
                     std::string(what) + " " + hex(value) + " is not a multiple of " + std::to_string(of));
}

TensorMap read_map(Warp& w, const Inst& i, int lane, u64 address) {
  need_multiple(w, i, lane, address, 64, "tensor map address");
  TensorMap map;
  std::memcpy(&map, global_range(w, i, lane, address, 128, Access::Read), sizeof map);
  if (map.magic != kTensorMapMagic)
    throw_lane_error(w, i, lane, "memory", address,
                     "no tensor map of the simulator is at " + hex(address) + ": ptxsim_encode_tensor_map makes them");
  if (map.rank != i.sub)
    throw_lane_error(w, i, lane, "memory", address,
                     "a tensor map of rank " + std::to_string(map.rank) + " is used by a " + std::to_string(i.sub) +
                         "d copy");
  u32 inner = map.box[0] * tensor_map_element_bytes(map.type);
  if (map.swizzle && inner < 16u << map.swizzle)
    throw_lane_error(w, i, lane, "unsupported", address,
                     "an inner box dimension (" + std::to_string(inner) + " B) below the swizzle span is not simulated");
  return map;
}

struct Plan {
  std::vector<BulkPiece> pieces;
  u32 shared = 0, bytes = 0, inside = 0;
  u8 fill_bytes = 1;
  u64 fill = 0;
  Ty type = Ty::B8;
};

// Pieces of one lane's copy; `shared` is the address within the destination's or source's shared memory.
Plan make_plan(Warp& w, const Inst& i, int lane, u32 shared, Access global_access) {
  Plan p;
  p.shared = shared;
  if (i.sub) {
    TensorMap map = read_map(w, i, lane, lane_value(w, i.o[1], 64, i.ext[1], lane));
    need_multiple(w, i, lane, shared, 128, "shared address");
    i32 coords[5] = {};
    for (u32 k = 0; k < i.sub; ++k) coords[k] = static_cast<i32>(w.r32(i.ext[3 + k])[lane]);
    p.pieces = tensor_pieces(map, coords, shared, &p.bytes, &p.inside);
    p.fill_bytes = static_cast<u8>(tensor_map_element_bytes(map.type));
    p.fill = map.nan_fill ? tensor_map_nan(map.type) : 0;
    p.type = tensor_map_element_type(map.type);
  } else {
    u64 global = lane_value(w, i.o[1], i.pneg & kNarrowSource ? 32 : 64, i.ext[1], lane);
    p.bytes = p.inside = w.r32(i.o[2])[lane];
    need_multiple(w, i, lane, shared, 16, "shared address");
    if (!(i.pneg & kSharedSource)) need_multiple(w, i, lane, global, 16, "global address");
    need_multiple(w, i, lane, p.bytes, 16, "size");
    p.type = static_cast<Ty>(i.bytes);
    if (p.bytes) p.pieces.push_back({shared, p.bytes, global});
  }
  if (!(i.pneg & kSharedSource))
    for (const BulkPiece& piece : p.pieces)
      if (piece.global) global_range(w, i, lane, piece.global, piece.bytes, global_access);
  return p;
}

void check_room(Warp& w, const Inst& i, int lane, const Cta& cta, u32 offset, u32 bytes) {
  if (static_cast<u64>(offset) + bytes > cta.smem.size())
    throw_lane_error(w, i, lane, "memory", offset,
                     "bulk copy of " + std::to_string(bytes) + " B at shared-memory byte " + std::to_string(offset) +
                         " leaves the CTA's " + std::to_string(cta.smem.size()) + " B");
}

void start_load(Warp& w, const Inst& i, int lane, Cta& cta, const Plan& plan, u32 mbarrier, const u8* source,
                const Clock& clock) {
  check_room(w, i, lane, cta, plan.shared, plan.bytes);
  if (!find_mbarrier(w, i, lane, cta, mbarrier).init_fenced && w.worker->launch->check_races && w.worker->launch->check_proxy)
    throw_lane_error(w, i, lane, "proxy", mbarrier,
                     "the copy completes through the async proxy on the mbarrier at byte " + std::to_string(mbarrier) +
                         ", which was initialized through the generic proxy; fence.mbarrier_init or " +
                         "fence.proxy.async is missing between the two");
  u8* state = cta.smem_state.data();
  for (u32 k = plan.shared; k < plan.shared + plan.bytes; ++k)
    if (state[k] & (kInFlight | kMbarrierObject)) {
      if (&cta == w.cta) in_flight_fault(w, i, lane, k);
      throw_lane_error(w, i, lane, "race", k, "writes bytes of CTA rank " + std::to_string(cta.rank) +
                                                  " that another copy in flight or an mbarrier occupies");
    }
  BulkLoad load;
  load.pc = i.index, load.bytes = plan.bytes, load.cta = &cta, load.issuer = w.cta, load.mbarrier = mbarrier;
  load.fill = plan.fill, load.fill_bytes = plan.fill_bytes, load.shared_source = source;
  load.pieces = plan.pieces, load.clock = clock;
  if (&cta == w.cta) {
    race_async_write(w, i, lane, plan.shared, plan.bytes);
  } else {  // clocks of different CTAs do not compare: nobody is the writer
    for (u32 at = plan.shared / 16; at < (plan.shared + plan.bytes + 15) / 16; ++at)
      cta.race_cells[at].write_bytes = cta.race_cells[at].read_bytes = 0;
  }
  std::memset(state + plan.shared, kInFlight, plan.bytes);
  cta.cluster->loads.push_back(std::move(load));
}

void exec_load(Warp& w, const Inst& i, u32 m) {
  for (u32 left = m; left; left &= left - 1) {
    int l = __builtin_ctz(left);
    SharedPlace to = cluster_place(w, i, l, lane_value(w, i.o[0], i.width[0], i.ext[0], l));
    u64 bar = lane_value(w, i.o[3], i.width[1], i.ext[2], l);
    need_multiple(w, i, l, bar, 8, "mbarrier address");
    SharedPlace barrier = cluster_place(w, i, l, bar);
    Plan plan = make_plan(w, i, l, to.offset, Access::Read);
    const u8* source = nullptr;
    if (i.pneg & kSharedSource) {
      u64 from = lane_value(w, i.o[1], i.pneg & kNarrowSource ? 32 : 64, i.ext[1], l);
      need_multiple(w, i, l, from, 16, "source address");
      check_room(w, i, l, *w.cta, static_cast<u32>(from), plan.bytes);
      for (u32 k = 0; k < plan.bytes; k += 16) shared_ptr(w, i, l, from + k, 16, Access::Read);
      source = w.cta->smem.data() + from;
    }
    Clock clock{};
    std::memcpy(clock.known, w.known_times, sizeof clock.known);
    std::memcpy(clock.fenced, w.fenced_times, sizeof clock.fenced);
    if (source) race_async_read(w, i, clock, race_tick(*w.cta), static_cast<u32>(source - w.cta->smem.data()), plan.bytes);
    if (i.o[4] == kNoPc) {
      if (to.cta != barrier.cta)
        throw_lane_error(w, i, l, "mbarrier", bar, "the mbarrier is not in the CTA whose shared memory is written");
      start_load(w, i, l, *to.cta, plan, barrier.offset, source, clock);
    } else {
      u32 mask = w.r32(i.o[4])[l] & 0xffff;
      Cluster& cluster = *w.cta->cluster;
      if (!mask || mask >> cluster.ctas.size())
        throw_lane_error(w, i, l, "memory", mask,
                         "multicast mask " + hex(mask) + " does not fit a cluster of " +
                             std::to_string(cluster.ctas.size()) + " CTAs");
      for (u32 rank = 0; rank < cluster.ctas.size(); ++rank)
        if (mask >> rank & 1) start_load(w, i, l, cluster.ctas[rank], plan, barrier.offset, source, clock);
    }
    race_clock(w);  // what follows is newer
    if (!source) w.worker->counters.tma_bytes_read += plan.inside;
  }
}

void exec_store(Warp& w, const Inst& i, u32 m) {
  for (u32 left = m; left; left &= left - 1) {
    int l = __builtin_ctz(left);
    u64 from = lane_value(w, i.o[0], i.width[0], i.ext[0], l);
    Plan plan = make_plan(w, i, l, static_cast<u32>(from), i.vec ? Access::ReadWrite : Access::Write);
    if (from >> kClusterShift)
      throw_lane_error(w, i, l, "memory", from, "the source must be in the own CTA's shared memory");
    check_room(w, i, l, *w.cta, plan.shared, plan.bytes);
    BulkStore store;
    store.pc = i.index, store.group = w.store_group[l], store.lane = l, store.reduction = i.vec, store.type = plan.type;
    for (const BulkPiece& piece : plan.pieces) {
      for (u32 k = 0; k < piece.bytes && piece.global; ++k)
        if (w.worker->launch->check_init && w.cta->smem_state[piece.smem + k] != kWritten)
          shared_fault(w, i, l, piece.smem + k, 1);
      if (piece.global) store.pieces.push_back(piece);
    }
    store.clock = race_clock(w);
    w.stores.push_back(std::move(store));
    w.worker->counters.tma_bytes_written += plan.inside;
  }
}

// ---- reductions on global memory: one lock for the process, since CTAs run on several threads.
std::mutex reduction_lock;

template <class T>
T reduce_value(u8 how, T old, T value) {
  switch (how) {
    case kAdd:
      return static_cast<T>(old + value);
    case kMin:
      return value < old ? value : old;
    case kMax:
      return old < value ? value : old;
    default:
      break;
  }
  if constexpr (std::is_integral_v<T>) {
    if (how == kInc) return old >= value ? 0 : static_cast<T>(old + 1);
    if (how == kDec) return !old || old > value ? value : static_cast<T>(old - 1);
    if (how == kAnd) return old & value;
    if (how == kOr) return old | value;
    if (how == kXor) return old ^ value;
  }
  return value;
}

template <class T>
void reduce_all(u8 how, u8* to, const u8* from, u32 bytes) {
  for (u32 at = 0; at + sizeof(T) <= bytes; at += sizeof(T)) {
    T old, value;
    std::memcpy(&old, to + at, sizeof(T)), std::memcpy(&value, from + at, sizeof(T));
    value = reduce_value<T>(how, old, value);
    std::memcpy(to + at, &value, sizeof(T));
  }
}

template <class Load, class Store>
void reduce_narrow(u8 how, u8* to, const u8* from, u32 bytes, Load load, Store store) {
  for (u32 at = 0; at + 2 <= bytes; at += 2) {
    u16 old, value;
    std::memcpy(&old, to + at, 2), std::memcpy(&value, from + at, 2);
    value = store(reduce_value<float>(how, load(old), load(value)));
    std::memcpy(to + at, &value, 2);
  }
}

void reduce_bytes(u8 how, Ty type, u8* to, const u8* from, u32 bytes) {
  std::lock_guard<std::mutex> hold(reduction_lock);
  switch (type) {
    case Ty::F32:
      return reduce_all<float>(how, to, from, bytes);
    case Ty::F64:
      return reduce_all<double>(how, to, from, bytes);
    case Ty::F16:
      return reduce_narrow(how, to, from, bytes, half_to_float, float_to_half);
    case Ty::BF16:
      return reduce_narrow(how, to, from, bytes, bf16_to_float, float_to_bf16);
    case Ty::S32:
      return how == kAdd ? reduce_all<u32>(how, to, from, bytes) : reduce_all<i32>(how, to, from, bytes);
    case Ty::S64:
      return how == kAdd ? reduce_all<u64>(how, to, from, bytes) : reduce_all<i64>(how, to, from, bytes);
    case Ty::U64:
    case Ty::B64:
      return reduce_all<u64>(how, to, from, bytes);
    default:
      return reduce_all<u32>(how, to, from, bytes);
  }
}

void read_store(Warp& w, BulkStore& store) {
  if (store.read) return;
  const Inst& i = w.worker->launch->entry->insts[store.pc];
  u32 now = race_tick(*w.cta);
  for (const BulkPiece& piece : store.pieces) {
    race_async_read(w, i, store.clock, now, piece.smem, piece.bytes);
    const u8* from = w.cta->smem.data() + piece.smem;
    store.data.insert(store.data.end(), from, from + piece.bytes);
  }
  w.known_times[w.id] = std::max(w.known_times[w.id], now);
  race_clock(w);
  store.read = true;
}

void write_store(BulkStore& store) {
  const u8* from = store.data.data();
  for (const BulkPiece& piece : store.pieces) {
    u8* to = reinterpret_cast<u8*>(piece.global);
    if (store.reduction)
      reduce_bytes(store.reduction, store.type, to, from, piece.bytes);
    else
      std::memcpy(to, from, piece.bytes);
    from += piece.bytes;
  }
}

void exec_commit(Warp& w, const Inst&, u32 m) {
  for (BulkStore& store : w.stores)
    if (m >> store.lane & 1) store.committed = true;
  for (u32 left = m; left; left &= left - 1) ++w.store_group[__builtin_ctz(left)];
}

// imm: groups that may stay pending; vec: .read.
void exec_wait_group(Warp& w, const Inst& i, u32 m) {
  u32 limit[kLanes], n = static_cast<u32>(i.imm);
  for (int l = 0; l < kLanes; ++l) limit[l] = w.store_group[l] > n ? w.store_group[l] - n : 0;
  complete_stores(w, i, m, limit, !i.vec);
}

}  // namespace

void complete_stores(Warp& w, const Inst&, u32 lanes, const u32* limit, bool write) {
  size_t kept = 0;
  for (size_t k = 0; k < w.stores.size(); ++k) {
    BulkStore& store = w.stores[k];
    bool mine = (lanes >> store.lane & 1) && store.group < limit[store.lane];
    if (mine) read_store(w, store);
    if (mine && write) {
      write_store(store);
      continue;
    }
    if (kept != k) w.stores[kept] = std::move(w.stores[k]);
    ++kept;
  }
  w.stores.resize(kept);
}

void finish_stores(Warp& w) {
  for (BulkStore& store : w.stores) {
    const Inst& i = w.worker->launch->entry->insts[store.pc];
    if (!store.read)
      throw_lane_error(w, i, store.lane, "race", store.pieces.empty() ? 0 : store.pieces[0].smem,
                       std::string("the thread exits while this copy may still read shared memory: ") +
                           (store.committed ? "no cp.async.bulk.wait_group covers it" : "no commit_group covers it"));
    write_store(store);
  }
  w.stores.clear();
}

void land_bulk_load(Cluster& cluster, size_t index) {
  BulkLoad load = std::move(cluster.loads[index]);
  cluster.loads.erase(cluster.loads.begin() + static_cast<std::ptrdiff_t>(index));
  Cta& cta = *load.cta;
  for (const BulkPiece& piece : load.pieces) {
    u8* to = cta.smem.data() + piece.smem;
    if (load.shared_source)
      std::memcpy(to, load.shared_source, piece.bytes);
    else if (piece.global)
      std::memcpy(to, reinterpret_cast<const void*>(piece.global), piece.bytes);
    else
      for (u32 k = 0; k < piece.bytes; ++k) to[k] = static_cast<u8>(load.fill >> (8 * (k % load.fill_bytes)));
    std::memset(cta.smem_state.data() + piece.smem, kWritten, piece.bytes);
  }
  mbarrier_complete_tx(cta, load.mbarrier, load.issuer == &cta ? &load.clock : nullptr, load.bytes);
}

namespace {

void exec_nothing(Warp&, const Inst&, u32) {}

// ---- decoding
u8 address(Decoding& d, const Operand& op, u32 slot, u32* offset) {
  Operand base = op;
  if (!base.elems.empty()) base.elems.resize(1);
  Space space = Space::Shared;
  u8 width = 0;
  d.inst.o[slot] = address_slot(d, base, &space, &width);
  *offset = static_cast<u32>(d.inst.imm);
  d.inst.imm = 0;
  return width;
}

void take_hints(Decoding& d, bool* hint) {
  *hint = d.take("L2::cache_hint");
  if (d.take("cp_mask")) d.unsupported("a bulk copy with a byte mask");
}

int take_rank(Decoding& d) {
  const char* ranks[] = {"1d", "2d", "3d", "4d", "5d"};
  for (int k = 0; k < 5; ++k)
    if (d.take(ranks[k])) return k + 1;
  d.unsupported("a tensor copy without a known dimension");
}

// Coordinates of [map, {c0, ...}].
void coordinates(Decoding& d, const Operand& op, std::vector<u32>* ext) {
  bool good = op.kind == Operand::Memory && op.elems.size() == 2;
  std::vector<Operand> list;
  if (good) list = op.elems[1].kind == Operand::Vector ? op.elems[1].elems : std::vector<Operand>{op.elems[1]};
  if (!good || list.size() != d.inst.sub) d.malformed("the tensor map operand needs one coordinate per dimension");
  for (const Operand& e : list) ext->push_back(d.src(e, Ty::S32));
}

void decode_prefetch(Decoding& d, bool tensor) {
  if (!d.take("L2") || !d.take("global")) d.unsupported("this bulk prefetch");
  if (tensor) take_rank(d), d.take("tile");
  bool hint = false;
  take_hints(d, &hint);
  d.use(exec_nothing, Cls::Bulk);
}

Reduction take_reduction(Decoding& d) {
  const char* names[] = {"add", "min", "max", "inc", "dec", "and", "or", "xor"};
  for (u8 k = 0; k < 8; ++k)
    if (d.take(names[k])) return static_cast<Reduction>(k + 1);
  d.unsupported("this bulk reduction");
}

void check_reduction(Decoding& d, Reduction how, Ty type) {
  bool floating = type == Ty::F16 || type == Ty::BF16 || type == Ty::F32 || type == Ty::F64;
  bool narrow = type == Ty::F16 || type == Ty::BF16, bits = how >= kAnd;
  bool good = type == Ty::U32 || type == Ty::S32 || type == Ty::U64 || type == Ty::S64 || floating ||
              (bits && (type == Ty::B32 || type == Ty::B64));
  if (floating && how != kAdd && !(narrow && (how == kMin || how == kMax))) good = false;
  if ((how == kInc || how == kDec) && type != Ty::U32) good = false;
  if (!good) d.unsupported("this bulk reduction");
}

void decode_copy(Decoding& d, bool reduce) {
  bool tensor = d.take("tensor"), hint = false;
  if (d.take("prefetch")) return decode_prefetch(d, tensor || d.take("tensor"));
  if (tensor) d.inst.sub = static_cast<u8>(take_rank(d)), d.take("tile");
  // The order of the two state spaces tells the direction.
  size_t shared = 99, global = 99, cluster = 99;
  for (size_t k = 0; k < d.raw.mods.size(); ++k) {
    if (d.raw.mods[k] == "shared::cta") shared = k;
    if (d.raw.mods[k] == "shared::cluster") cluster = k;
    if (d.raw.mods[k] == "global") global = k;
  }
  for (const char* mod : {"shared::cta", "shared::cluster", "global"}) d.take(mod);
  bool group = d.take("bulk_group"), barrier = d.take("mbarrier::complete_tx::bytes");
  bool multicast = d.take("multicast::cluster");
  take_hints(d, &hint);
  std::vector<u32> ext(3, 0);
  if (group) {
    if (global > shared) d.unsupported("this direction of a bulk copy");
    if (reduce) {
      Reduction how = take_reduction(d);
      d.take("noftz");
      d.inst.vec = how;
      if (!tensor) {
        Ty type = d.take_type();
        check_reduction(d, how, type);
        d.inst.bytes = static_cast<u8>(type);
      }
    } else {
      d.inst.vec = kNone;
    }
    d.need((tensor ? 2 : 3) + (hint ? 1 : 0));
    d.inst.width[0] = address(d, d.op(1), 0, &ext[0]);
    address(d, d.op(0), 1, &ext[1]);
    if (tensor)
      coordinates(d, d.op(0), &ext);
    else
      d.inst.o[2] = d.src(2, Ty::U32);
    d.inst.ext = d.builder.keep(ext);
    return d.use(exec_store, Cls::Bulk);
  }
  if (!barrier || reduce) d.unsupported("this completion mechanism of a bulk copy");
  size_t to = std::min(shared, cluster);
  bool from_shared = global == 99;
  if (from_shared ? cluster > shared || shared == 99 : to > global) d.unsupported("this direction of a bulk copy");
  if (from_shared && (tensor || multicast)) d.unsupported("this bulk copy");
  size_t fixed = tensor ? 3 : 4;
  d.need(fixed + (multicast ? 1 : 0) + (hint ? 1 : 0));
  d.inst.width[0] = address(d, d.op(0), 0, &ext[0]);
  u8 width = address(d, d.op(1), 1, &ext[1]);
  if (!from_shared && width != 64) d.malformed("a global address has 64 bits");
  d.inst.width[1] = address(d, d.op(fixed - 1), 3, &ext[2]);
  if (tensor)
    coordinates(d, d.op(1), &ext);
  else
    d.inst.o[2] = d.src(2, Ty::U32);
  d.inst.o[4] = kNoPc;
  if (multicast) d.inst.o[4] = d.src(fixed, Ty::B16);
  d.inst.ext = d.builder.keep(ext);
  d.inst.pneg = from_shared ? kSharedSource | (width == 32 ? kNarrowSource : 0) : 0;
  d.use(exec_load, Cls::Bulk);
}

}  // namespace

// What follows "cp.async.bulk" or "cp.reduce.async.bulk".
void decode_bulk(Decoding& d, bool reduce) {
  d.require_sm(90, "a bulk copy");
  d.inst.vec = 0;
  if (d.take("commit_group")) return d.need(0), d.use(exec_commit, Cls::Bulk);
  if (d.take("wait_group")) {
    d.inst.vec = d.take("read");
    d.need(1);
    if (d.op(0).kind != Operand::Int) d.malformed("wait_group count is not a constant");
    d.inst.imm = static_cast<i64>(d.op(0).bits);
    return d.use(exec_wait_group, Cls::Bulk);
  }
  decode_copy(d, reduce);
}

}  // namespace ptxsim
