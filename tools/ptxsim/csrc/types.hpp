// SPDX-License-Identifier: Apache-2.0
// Scalar types: integer aliases, a warp's width, PTX's types with their names and sizes, bit casts. Not responsible for
// conversions between number formats: numeric.hpp has them.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>

namespace ptxsim {

using u8 = uint8_t;
using u16 = uint16_t;
using u32 = uint32_t;
using u64 = uint64_t;
using i8 = int8_t;
using i16 = int16_t;
using i32 = int32_t;
using i64 = int64_t;

constexpr int kLanes = 32;
constexpr u32 kFullMask = 0xffffffffu;

enum class Ty : u8 {
  None,
  Pred,
  B8,
  B16,
  B32,
  B64,
  B128,
  U8,
  U16,
  U32,
  U64,
  S8,
  S16,
  S32,
  S64,
  F16,
  F16x2,
  BF16,
  BF16x2,
  TF32,
  F32,
  F64,
  E4M3,
  E5M2,
  E4M3x2,
  E5M2x2,
  U16x2,
  S16x2,
};

int type_bytes(Ty type);                     // 0 for Pred and None
Ty type_from_name(const std::string& name);  // "f32" -> Ty::F32; Ty::None when it is no type
const char* type_name(Ty type);
inline bool is_signed(Ty t) { return t == Ty::S8 || t == Ty::S16 || t == Ty::S32 || t == Ty::S64; }

template <class To, class From>
inline To bit_cast(const From& from) {
  static_assert(sizeof(To) == sizeof(From), "bit_cast needs equal sizes");
  To to;
  std::memcpy(&to, &from, sizeof(To));
  return to;
}

}  // namespace ptxsim
