// SPDX-License-Identifier: Apache-2.0
// Which register a name means where it stands: the open scopes of an entry, innermost first, with single registers and
// numbered ranges (%r<8>). Not responsible for the registers' types: RawEntry::regs has them.
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

namespace ptxsim {

class RegisterScopes {
 public:
  void open(int id) { scopes_.push_back(Scope{id, {}, {}}); }
  void close() { scopes_.pop_back(); }
  bool empty() const { return scopes_.empty(); }
  int current() const { return scopes_.back().id; }

  // Declarations in the innermost scope; `base` is the index of the (first) register in RawEntry::regs.
  void declare(const std::string& name, int base) { scopes_.back().names[name] = base; }
  void declare_range(const std::string& prefix, int base, int count) {
    scopes_.back().ranges[prefix] = Range{base, count};
  }

  int find(const std::string& name) const;  // index into RawEntry::regs; -1 when no open scope declares it

 private:
  struct Range {
    int base, count;
  };
  struct Scope {
    int id;
    std::unordered_map<std::string, int> names;
    std::unordered_map<std::string, Range> ranges;
  };

  std::vector<Scope> scopes_;
};

}  // namespace ptxsim
