// SPDX-License-Identifier: Apache-2.0
// Decoders that one opcode family calls in another, because PTX spells integer and float forms with one opcode.
#pragma once

#include "decode.hpp"
#include "lanes.hpp"
#include "numeric.hpp"

namespace ptxsim {

inline bool is_half(Ty t) { return t == Ty::F16 || t == Ty::F16x2 || t == Ty::BF16 || t == Ty::BF16x2; }
inline bool is_float(Ty t) { return t == Ty::F32 || t == Ty::F64 || is_half(t); }

void decode_wide(Decoding&);         // mul.wide, mad.wide
void decode_float_arith(Decoding&);  // add, sub, mul, mad, fma: f32, f64, and half through decode_half_arith
void decode_float_min_max(Decoding&);
void decode_float_div(Decoding&);
void decode_float_abs_neg(Decoding&);
void decode_half_arith(Decoding&);  // f16, f16x2, bf16, bf16x2
void decode_half_min_max(Decoding&);
void decode_half_abs_neg(Decoding&);

Rnd take_rounding(Decoding&, bool* given = nullptr);  // .rn .rz .rm .rp

}  // namespace ptxsim
