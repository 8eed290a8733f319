// SPDX-License-Identifier: Apache-2.0
// The table of PTX's scalar types: names and sizes.
#include "types.hpp"

namespace ptxsim {
namespace {

struct TypeRow {
  const char* name;
  Ty type;
  int bytes;
};

constexpr TypeRow kTypes[] = {
    {"pred", Ty::Pred, 0},     {"b8", Ty::B8, 1},         {"b16", Ty::B16, 2},     {"b32", Ty::B32, 4},
    {"b64", Ty::B64, 8},       {"b128", Ty::B128, 16},    {"u8", Ty::U8, 1},       {"u16", Ty::U16, 2},
    {"u32", Ty::U32, 4},       {"u64", Ty::U64, 8},       {"s8", Ty::S8, 1},       {"s16", Ty::S16, 2},
    {"s32", Ty::S32, 4},       {"s64", Ty::S64, 8},       {"f16", Ty::F16, 2},     {"f16x2", Ty::F16x2, 4},
    {"bf16", Ty::BF16, 2},     {"bf16x2", Ty::BF16x2, 4}, {"tf32", Ty::TF32, 4},   {"f32", Ty::F32, 4},
    {"f64", Ty::F64, 8},       {"e4m3", Ty::E4M3, 1},     {"e5m2", Ty::E5M2, 1},   {"e4m3x2", Ty::E4M3x2, 2},
    {"e5m2x2", Ty::E5M2x2, 2}, {"u16x2", Ty::U16x2, 4},   {"s16x2", Ty::S16x2, 4},
};

}  // namespace

int type_bytes(Ty type) {
  for (const TypeRow& row : kTypes)
    if (row.type == type) return row.bytes;
  return 0;
}

Ty type_from_name(const std::string& name) {
  for (const TypeRow& row : kTypes)
    if (name == row.name) return row.type;
  return Ty::None;
}

const char* type_name(Ty type) {
  for (const TypeRow& row : kTypes)
    if (row.type == type) return row.name;
  return "none";
}

}  // namespace ptxsim
