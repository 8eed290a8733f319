// SPDX-License-Identifier: Apache-2.0
// Tensor maps. The driver's 128-byte encoding is not documented, so the simulator has its own, in the same size and
// with the same alignment; ptxsim_encode_tensor_map makes one from the arguments of cuTensorMapEncodeTiled.
#pragma once

#include <vector>

#include "runtime.hpp"

namespace ptxsim {

constexpr u64 kTensorMapMagic = 0x31504d4e53585450ull;  // "PTXSNMP1"

// Little-endian, at offset 0 of the 128 bytes; the rest is zero.
struct TensorMap {
  u64 magic;
  u64 address;
  u64 stride[4];       // bytes, dimensions 1 to 4
  u32 extent_less1[5]; // elements - 1, dimension 0 innermost
  u16 box[5];          // elements
  u8 step[5];          // element strides
  u8 type;             // CUtensorMapDataType
  u8 rank;
  u8 swizzle;          // 0 none, 1 32 B, 2 64 B, 3 128 B
  u8 nan_fill;         // out-of-bounds elements are NaN, else zero
  u8 pad;
};
static_assert(sizeof(TensorMap) <= 128, "fits in a CUtensorMap");

u32 tensor_map_element_bytes(u32 type);
Ty tensor_map_element_type(u32 type);  // for reductions
u64 tensor_map_nan(u32 type);          // 0 for integers

// Parts of the box at `coords` between the tensor and shared memory at `smem`; *bytes becomes the size of the box and
// *inside the bytes of it that lie in the tensor. Parts out of bounds have global == 0.
std::vector<BulkPiece> tensor_pieces(const TensorMap& map, const i32* coords, u32 smem, u32* bytes, u32* inside);

}  // namespace ptxsim
