// SPDX-License-Identifier: Apache-2.0
// TMA descriptors as values: what one describes, and a per-thread cache, so that a repeated call encodes nothing. Not
// responsible for which tensors and boxes a kernel wants (params_sm90.hpp) or for the encoding itself (device.hpp).
#pragma once

#include <cstdint>

#include "attnsmith/sm90/params.hpp"

namespace attnsmith {

class Device;

// CUtensorMapDataType's codes of the types that the kernels load and store.
enum class MapType : uint32_t { kUint8 = 0, kFp16 = 6, kBf16 = 9 };

constexpr uint32_t num_bytes(MapType type) { return type == MapType::kUint8 ? 1 : 2; }

// The arguments of cuTensorMapEncodeTiled that differ between our tensors, innermost dim first. Every map has element
// strides of 1, no interleave, zero fill out of bounds and L2 promotion to 256 B. All its bytes count: make it with {}.
struct TensorMap {
  void const* address;
  uint64_t sizes[5];
  uint64_t strides[4];  // bytes, of dims 1 and up
  uint32_t box[5];
  uint32_t rank;
  MapType type;
  uint32_t swizzle_bytes;  // 32, 64 or 128
};

inline constexpr int kL2Promotion256B = 3;  // CU_TENSOR_MAP_L2_PROMOTION_L2_256B

// CUtensorMapSwizzle's code.
constexpr int swizzle_code(uint32_t swizzle_bytes) { return swizzle_bytes == 128 ? 3 : swizzle_bytes == 64 ? 2 : 1; }

// The device's descriptor of `map`, encoded at most once while the calling thread keeps it: it keeps some thousand.
TmaDescriptor const& tensor_map(TensorMap const& map, Device& device);

// Descriptors encoded so far by all threads.
uint64_t num_encoded_tensor_maps();

}  // namespace attnsmith
