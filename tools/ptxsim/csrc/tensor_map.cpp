// SPDX-License-Identifier: Apache-2.0
// Tensor maps: encoding with the driver's checks, and the walk over a box.
#include "tensor_map.hpp"

#include <cstdlib>

#include "ptxsim.h"

namespace ptxsim {
namespace {

struct TypeRow {
  u32 bytes;
  Ty type;
  u64 nan;
};
// In the order of CUtensorMapDataType.
constexpr TypeRow kTypes[] = {
    {1, Ty::U8, 0},       {2, Ty::U16, 0},          {4, Ty::U32, 0},
    {4, Ty::S32, 0},      {8, Ty::U64, 0},          {8, Ty::S64, 0},
    {2, Ty::F16, 0x7fff}, {4, Ty::F32, 0x7fffffff}, {8, Ty::F64, 0x7fffffffffffffff},
    {2, Ty::BF16, 0x7fff}, {4, Ty::F32, 0x7fffffff}, {4, Ty::TF32, 0x7fffffff},
    {4, Ty::TF32, 0x7fffffff},
};
constexpr u32 kTypeCount = sizeof kTypes / sizeof kTypes[0];

[[noreturn]] void refuse(const std::string& what) {
  throw SimError("launch", "CUDA_ERROR_INVALID_VALUE: tensor map: " + what);
}

std::string text(u64 value) { return std::to_string(value); }

TensorMap encode(u32 type, u32 rank, u64 address, const uint64_t* extents, const uint64_t* strides, const uint32_t* box,
                 const uint32_t* steps, int interleave, int swizzle, int l2_promotion, int oob_fill) {
  if (type >= kTypeCount) refuse("data type " + text(type) + " is not simulated; 0 to " + text(kTypeCount - 1) + " are");
  if (rank < 1 || rank > 5) refuse("rank " + text(rank) + "; 1 to 5 allowed");
  if (interleave != 0) throw SimError("unsupported", "tensor map: interleave layouts are not implemented");
  if (swizzle < 0 || swizzle > 3) refuse("swizzle " + std::to_string(swizzle) + "; 0 (none) to 3 (128 B) are simulated");
  if (l2_promotion < 0 || l2_promotion > 3) refuse("L2 promotion " + std::to_string(l2_promotion) + "; 0 to 3 allowed");
  if (oob_fill < 0 || oob_fill > 1) refuse("out-of-bounds fill " + std::to_string(oob_fill) + "; 0 or 1 allowed");
  if (oob_fill == 1 && !kTypes[type].nan) refuse("NaN fill needs a floating-point type");
  if (!address || address % 16) refuse("global address " + hex(address) + " is not a multiple of 16 B");
  TensorMap map{};
  map.magic = kTensorMapMagic, map.address = address;
  map.type = static_cast<u8>(type), map.rank = static_cast<u8>(rank);
  map.swizzle = static_cast<u8>(swizzle), map.nan_fill = static_cast<u8>(oob_fill);
  u64 bytes = kTypes[type].bytes;
  for (u32 k = 0; k < 5; ++k) map.box[k] = 1, map.step[k] = 1;
  for (u32 k = 0; k < rank; ++k) {
    std::string dimension = " of dimension " + text(k);
    if (!extents[k] || extents[k] > 1ull << 32) refuse("size " + text(extents[k]) + dimension + "; 1 to 2^32 allowed");
    if (!box[k] || box[k] > 256) refuse("box size " + text(box[k]) + dimension + "; 1 to 256 allowed");
    u32 step = steps ? steps[k] : 1;
    if (!step || step > 8) refuse("element stride " + text(step) + dimension + "; 1 to 8 allowed");
    map.extent_less1[k] = static_cast<u32>(extents[k] - 1);
    map.box[k] = static_cast<u16>(box[k]);
    map.step[k] = k ? static_cast<u8>(step) : 1;  // ignored for dimension 0 without interleave
    if (!k) continue;
    u64 stride = strides[k - 1];
    if (stride % 16 || stride >= 1ull << 40)
      refuse("stride " + text(stride) + " B" + dimension + "; a multiple of 16 B below 2^40 needed");
    map.stride[k - 1] = stride;
  }
  u64 inner = box[0] * bytes;
  if (inner % 16) refuse("inner box dimension of " + text(inner) + " B is not a multiple of 16 B");
  u64 span = swizzle ? 16ull << swizzle : 0;
  if (span && inner > span)
    refuse("inner box dimension of " + text(inner) + " B exceeds the swizzle span of " + text(span) + " B");
  return map;
}

}  // namespace

u32 tensor_map_element_bytes(u32 type) { return kTypes[type].bytes; }
Ty tensor_map_element_type(u32 type) { return kTypes[type].type; }
u64 tensor_map_nan(u32 type) { return kTypes[type].nan; }

std::vector<BulkPiece> tensor_pieces(const TensorMap& map, const i32* coords, u32 smem, u32* bytes, u32* inside) {
  const u32 element = kTypes[map.type].bytes, inner = map.box[0] * element;
  const u32 mask = map.swizzle ? (1u << map.swizzle) - 1 : 0;
  const u64 extent0 = static_cast<u64>(map.extent_less1[0]) + 1;
  // In-bounds part of a row, in bytes from its start.
  i64 first = coords[0] < 0 ? -static_cast<i64>(coords[0]) : 0;
  i64 last = static_cast<i64>(extent0) - coords[0];
  first = std::min<i64>(first, map.box[0]) * element;
  last = std::max<i64>(first, std::min<i64>(std::max<i64>(last, 0), map.box[0]) * element);
  u32 count[5], at[5] = {0, 0, 0, 0, 0};
  u64 rows = 1;
  for (u32 k = 1; k < 5; ++k) {
    count[k] = (map.box[k] + map.step[k] - 1u) / map.step[k];
    rows *= count[k];
  }
  std::vector<BulkPiece> pieces;
  *bytes = static_cast<u32>(rows * inner), *inside = 0;
  u32 offset = smem;
  auto add = [&](u32 begin, u32 end, u64 row) {  // bytes of the row, whole swizzle units apart
    while (begin < end) {
      u32 address = offset + begin, stop = mask ? std::min(end, (begin / 16 + 1) * 16) : end;
      address ^= (address >> 7 & mask) << 4;
      pieces.push_back({address, stop - begin, row ? row + begin : 0});
      if (row) *inside += stop - begin;
      begin = stop;
    }
  };
  for (u64 r = 0; r < rows; ++r) {
    bool in = true;
    i64 base = static_cast<i64>(coords[0]) * element;
    for (u32 k = 1; k < map.rank; ++k) {
      i64 position = static_cast<i64>(coords[k]) + static_cast<i64>(at[k]) * map.step[k];
      in = in && position >= 0 && position <= static_cast<i64>(map.extent_less1[k]);
      base += position * static_cast<i64>(map.stride[k - 1]);
    }
    u32 lo = in ? static_cast<u32>(first) : 0, hi = in ? static_cast<u32>(last) : 0;
    add(0, lo, 0);
    add(lo, hi, map.address + static_cast<u64>(base));
    add(hi, inner, 0);
    offset += inner;
    for (u32 k = 1; k < 5 && ++at[k] == count[k]; ++k) at[k] = 0;
  }
  return pieces;
}

}  // namespace ptxsim

extern "C" int ptxsim_encode_tensor_map(void* map, uint32_t type, uint32_t rank, uint64_t address,
                                        const uint64_t* extents, const uint64_t* strides, const uint32_t* box,
                                        const uint32_t* element_strides, int32_t interleave, int32_t swizzle,
                                        int32_t l2_promotion, int32_t oob_fill, char** error_json) {
  if (error_json) *error_json = nullptr;
  try {
    ptxsim::TensorMap encoded = ptxsim::encode(type, rank, address, extents, strides, box, element_strides, interleave,
                                               swizzle, l2_promotion, oob_fill);
    std::memset(map, 0, 128);
    std::memcpy(map, &encoded, sizeof encoded);
    return 0;
  } catch (const ptxsim::SimError& error) {
    std::string json = error.to_json();
    if (error_json && (*error_json = static_cast<char*>(std::malloc(json.size() + 1))))
      std::memcpy(*error_json, json.c_str(), json.size() + 1);
    return 1;
  }
}
