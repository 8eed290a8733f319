// SPDX-License-Identifier: Apache-2.0
// Implements params_sm90.hpp. The shapes of maps and boxes are those that attnsmith/sm90/params.hpp states.
#include "params_sm90.hpp"

#include <algorithm>
#include <limits>

#include "tensor_map.hpp"

namespace attnsmith {

namespace {

constexpr int64_t kTmaUnit = 16;                     // bytes: of addresses and strides
constexpr int64_t kMaxTmaStride = int64_t{1} << 40;  // bytes, exclusive
constexpr int64_t kL2Bytes = 32 << 20;               // of K and V at a time: of H100's 50 MB, less what Q and O stream through

struct Dim {
  int64_t size;
  int64_t stride;  // elements
};

int64_t ceil_div(int64_t value, int64_t divisor) { return (value + divisor - 1) / divisor; }

MapType map_type(DType dtype) {
  return dtype == DType::kFp16 ? MapType::kFp16 : dtype == DType::kBf16 ? MapType::kBf16 : MapType::kUint8;
}

// A map of `dims`, innermost first, whose first has stride 1; box[0] is set from the kernel's tile row.
TensorMap make_map(void const* address, MapType type, std::initializer_list<Dim> dims, int tile_row,
                   std::initializer_list<uint32_t> outer_box) {
  uint32_t const element_bytes = num_bytes(type);
  TensorMap map{};
  map.address = address;
  map.type = type;
  map.swizzle_bytes = static_cast<uint32_t>(box_row_bytes(tile_row * static_cast<int>(element_bytes)));
  map.box[0] = map.swizzle_bytes / element_bytes;
  std::copy(outer_box.begin(), outer_box.end(), map.box + 1);
  for (Dim const& dim : dims) {
    map.sizes[map.rank] = static_cast<uint64_t>(dim.size);
    // A dim of one element is never walked along: any legal stride serves.
    int64_t const bytes = dim.size > 1 ? dim.stride * element_bytes : kTmaUnit;
    if (map.rank > 0) map.strides[map.rank - 1] = static_cast<uint64_t>(bytes);
    ++map.rank;
  }
  return map;
}

TensorMap query_map(TensorView const& x, DType dtype, Kernel const& kernel, int tile_row, int group) {
  Dim const cols{x.head_dim, 1}, rows{x.seqlen, x.strides.row}, heads{x.nheads, x.strides.head},
      batch{x.batch, x.strides.batch};
  if (!kernel.key.packs_gqa) {
    return make_map(x.ptr, map_type(dtype), {cols, rows, heads, batch}, tile_row, {kRowsPerWarpgroup, 1, 1});
  }
  Dim const heads_of_group{group, x.strides.head}, groups{x.nheads / group, x.strides.head * group};
  uint32_t const box_heads = static_cast<uint32_t>(group);
  return make_map(x.ptr, map_type(dtype), {cols, heads_of_group, rows, groups, batch}, tile_row,
                  {box_heads, kRowsPerWarpgroup / box_heads, 1, 1});
}

// `x` with no element becomes a map of one row at `legal_address` that no kernel reads: it has no key block to load.
TensorMap key_map(TensorView const& x, DType dtype, Kernel const& kernel, int tile_row, void const* legal_address) {
  uint32_t const box_rows = static_cast<uint32_t>(kernel.tile.block_n / kernel.tile.cluster_size);
  if (x.seqlen == 0) {
    return make_map(legal_address, map_type(dtype), {{kTmaUnit, 1}, {1, 0}, {1, 0}, {1, 0}}, tile_row, {box_rows, 1, 1});
  }
  return make_map(x.ptr, map_type(dtype),
                  {{x.head_dim, 1}, {x.seqlen, x.strides.row}, {x.nheads, x.strides.head}, {x.batch, x.strides.batch}},
                  tile_row, {box_rows, 1, 1});
}

TensorMap value_map(FwdCall const& call, Kernel const& kernel) {
  TensorView const& v = call.v;
  if (!kernel.key.v_is_col_major) return key_map(v, call.dtype, kernel, kernel.key.head_dim_v, call.q.ptr);
  uint32_t const box_rows = static_cast<uint32_t>(kernel.key.head_dim_v / kernel.tile.cluster_size);
  return make_map(v.ptr, map_type(call.dtype),
                  {{v.seqlen, 1}, {v.head_dim, v.head_dim_stride}, {v.nheads, v.strides.head}, {v.batch, v.strides.batch}},
                  kernel.tile.block_n, {box_rows, 1, 1});
}

Descale make_descale(DescaleView const& view) { return Descale{view.ptr, view.batch_stride, view.head_stride}; }

// How many (batch, head) pairs of the kernel's tiles have K and V of kL2Bytes together: at least one key head's.
int32_t num_heads_per_l2(FwdCall const& call, int heads_per_key_head) {
  int64_t const bytes = call.k.seqlen * (call.k.head_dim + call.v.head_dim) * static_cast<int64_t>(num_bytes(call.dtype));
  int64_t const key_heads = std::max<int64_t>(1, kL2Bytes / std::max<int64_t>(1, bytes));
  int64_t const max = std::numeric_limits<int32_t>::max();
  return static_cast<int32_t>(std::min({key_heads, call.k.nheads * call.k.batch, max / heads_per_key_head}) *
                              heads_per_key_head);
}

uint32_t grid_size(Kernel const& kernel, int32_t num_tiles, int num_sms) {
  int64_t const cluster = kernel.tile.cluster_size;
  if (!kernel.tile.is_persistent()) return static_cast<uint32_t>(num_tiles);
  int64_t const resident = std::min<int64_t>(num_tiles, int64_t{num_sms} * kernel.tile.ctas_per_sm);
  return static_cast<uint32_t>(std::max(resident / cluster * cluster, cluster));
}

// Whether packed tiles of this many warpgroups are at most nine tenths of the unpacked ones.
bool packing_saves_tiles(int64_t seqlen_q, int64_t group, int64_t num_warpgroups) {
  int64_t const unpacked = group * ceil_div(seqlen_q, num_warpgroups * kRowsPerWarpgroup);
  int64_t const packed = ceil_div(seqlen_q, num_warpgroups * (kRowsPerWarpgroup / group));
  return packed * 10 <= unpacked * 9;
}

}  // namespace

bool fits_tma(TensorView const& x, uint64_t element_bytes) {
  if (x.extent_bytes(1) == 0) return true;  // nothing is loaded
  Dim const dims[] = {{x.batch, x.strides.batch},
                      {x.seqlen, x.strides.row},
                      {x.nheads, x.strides.head},
                      {x.head_dim, x.head_dim_stride}};
  for (Dim const& dim : dims) {
    if (dim.size <= 1 || dim.stride == 1) continue;  // stride 1: the innermost dim
    if (dim.stride < 1 || dim.stride >= kMaxTmaStride / static_cast<int64_t>(element_bytes)) return false;
    if (dim.stride * static_cast<int64_t>(element_bytes) % kTmaUnit != 0) return false;
  }
  return reinterpret_cast<uintptr_t>(x.ptr) % kTmaUnit == 0;
}

bool can_use_tma(FwdCall const& call) {
  uint64_t const bytes = num_bytes(call.dtype);
  return fits_tma(call.q, bytes) && fits_tma(call.k, bytes) && fits_tma(call.v, bytes) &&
         fits_tma(call.out, num_bytes(call.out_dtype));
}

bool packs_gqa(FwdCall const& call) {
  int64_t const group = call.k.nheads > 0 ? call.q.nheads / call.k.nheads : 1;
  if (call.pack_gqa == PackGqa::kNever || group <= 1 || group > kRowsPerWarpgroup) return false;
  if (call.pack_gqa == PackGqa::kAlways) return true;
  return packing_saves_tiles(call.q.seqlen, group, 2) && packing_saves_tiles(call.q.seqlen, group, 3);
}

FwdSm90Launch make_sm90_launch(FwdCall const& call, Kernel const& kernel, Device& device, void* stream) {
  FwdSm90Launch launch{};
  FwdSm90Params& params = launch.params;
  params.fwd = make_params(call, kernel);
  // Keys are contiguous there: the kernel, where it reads v itself, takes v_strides.row as that of a column.
  if (call.v.is_col_major()) params.fwd.v_strides.row = call.v.head_dim_stride;
  int const group = params.fwd.nheads_q_per_k;
  int32_t num_heads = params.fwd.nheads_q;
  int64_t rows = kernel.tile.block_m;
  if (kernel.key.packs_gqa) {
    rows = kernel.tile.block_m / kRowsPerWarpgroup * (kRowsPerWarpgroup / group);
    num_heads = params.fwd.nheads_k;
  }
  // Whole clusters of one head: the tiles of a cluster share K and V. Rows beyond seqlen_q read zeros and write nothing.
  int64_t const cluster = kernel.tile.cluster_size;
  params.fwd.num_m_blocks = narrow("num_m_blocks", ceil_div(ceil_div(call.q.seqlen, rows), cluster) * cluster);
  params.num_tiles = num_output_tiles(params.fwd.num_m_blocks, num_heads, params.fwd.batch);
  params.num_heads_per_l2 = num_heads_per_l2(call, kernel.key.packs_gqa ? 1 : group);
  params.q_descale = make_descale(call.q_descale);
  params.k_descale = make_descale(call.k_descale);
  params.v_descale = make_descale(call.v_descale);
  params.tma_q = tensor_map(query_map(call.q, call.dtype, kernel, kernel.key.head_dim, group), device);
  params.tma_k = tensor_map(key_map(call.k, call.dtype, kernel, kernel.key.head_dim, call.q.ptr), device);
  params.tma_v = tensor_map(value_map(call, kernel), device);
  params.tma_o = tensor_map(query_map(call.out, call.out_dtype, kernel, kernel.key.head_dim_v, group), device);
  if (kernel.tile.scheduler == Scheduler::kDynamic) params.tile_counter = device.tile_counter(stream);
  launch.grid = grid_size(kernel, params.num_tiles, device.limits().num_sms);
  return launch;
}

}  // namespace attnsmith
