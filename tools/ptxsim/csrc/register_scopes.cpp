// SPDX-License-Identifier: Apache-2.0
// Lookup of a register name: an exact declaration before a range of the same scope, inner scopes before outer ones.
#include "register_scopes.hpp"

#include <cctype>

namespace ptxsim {

int RegisterScopes::find(const std::string& name) const {
  size_t split = name.size();
  while (split > 0 && std::isdigit(static_cast<unsigned char>(name[split - 1]))) --split;
  bool numbered = split < name.size() && (name[split] != '0' || split + 1 == name.size()) && name.size() - split < 9;
  std::string prefix = name.substr(0, split);
  int number = numbered ? std::stoi(name.substr(split)) : -1;
  for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
    auto exact = scope->names.find(name);
    if (exact != scope->names.end()) return exact->second;
    if (!numbered) continue;
    auto range = scope->ranges.find(prefix);
    if (range != scope->ranges.end() && number < range->second.count) return range->second.base + number;
  }
  return -1;
}

}  // namespace ptxsim
