// SPDX-License-Identifier: Apache-2.0
// The four-part error of the launcher (asked, got, allowed, do), the same shape as AttnsmithError in Python. Not
// responsible for how it reaches Python: torch turns std::exception into RuntimeError, capi.cpp into a status.
#pragma once

#include <stdexcept>
#include <string>

namespace attnsmith {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

[[noreturn]] inline void fail(std::string const& asked, std::string const& got, std::string const& allowed,
                              std::string const& action) {
  throw Error(asked + ": got " + got + "; allowed: " + allowed + ". " + action);
}

}  // namespace attnsmith
