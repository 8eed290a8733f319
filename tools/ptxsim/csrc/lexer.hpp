// SPDX-License-Identifier: Apache-2.0
// PTX text -> tokens with line numbers and source offsets. Comments disappear here; nothing is interpreted.
#pragma once

#include <string>
#include <vector>

#include "types.hpp"

namespace ptxsim {

enum class Tok : u8 {
  Ident,    // add  %r1  $L__BB0_1
  Dot,      // .global  .L2::128B  (text without the dot)
  Int,      // 42 0x1F 017 0b101 1U
  Float32,  // 0f3F800000
  Float64,  // 0d..., 1.5
  String,
  Punct,  // one character
  End,
};

struct Token {
  Tok kind = Tok::End;
  std::string text;
  u64 bits = 0;  // Int: value, Float32: 32 bits, Float64: 64 bits
  int line = 0;
  size_t begin = 0, end = 0;
};

std::vector<Token> tokenize(const std::string& source);  // throws SimError "parse"

}  // namespace ptxsim
