// SPDX-License-Identifier: Apache-2.0
// Vocabulary shared by every file of the core: integer aliases, PTX scalar types, the one error type and bit casts.
// Not responsible for parsing or executing anything.
#pragma once

#include <cstdint>
#include <cstring>
#include <exception>
#include <string>
#include <type_traits>
#include <utility>

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
constexpr u32 kNoPc = 0xffffffffu;

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

// Everything that can go wrong, as the C ABI reports it: the executor completes the fields that the thrower lacks.
struct SimError : std::exception {
  std::string kind, message, text, kernel, nearest, report;
  int line = 0;
  bool has_cta = false, has_address = false;
  u32 cta[3] = {0, 0, 0};
  int thread = -1;
  u64 address = 0;
  i64 distance = 0;

  SimError(std::string kind_, std::string message_, int line_ = 0, std::string text_ = "")
      : kind(std::move(kind_)), message(std::move(message_)), text(std::move(text_)), line(line_) {}
  const char* what() const noexcept override { return message.c_str(); }
  std::string to_json() const;
};

template <class To, class From>
inline To bit_cast(const From& from) {
  static_assert(sizeof(To) == sizeof(From), "bit_cast needs equal sizes");
  To to;
  std::memcpy(&to, &from, sizeof(To));
  return to;
}

std::string json_quote(const std::string& text);
std::string hex(u64 value);

inline u64 splitmix64(u64& state) {
  u64 z = (state += 0x9e3779b97f4a7c15ull);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

}  // namespace ptxsim
