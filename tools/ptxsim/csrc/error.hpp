// SPDX-License-Identifier: Apache-2.0
// The one error type of the core, and how numbers and quoted text are written in messages and JSON. Not responsible for
// deciding what is an error.
#pragma once

#include <exception>
#include <string>
#include <utility>

#include "types.hpp"

namespace ptxsim {

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

std::string json_quote(const std::string& text);
std::string hex(u64 value);

}  // namespace ptxsim
