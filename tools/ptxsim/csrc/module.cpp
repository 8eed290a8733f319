// SPDX-License-Identifier: Apache-2.0
// Loading: parse, place global and constant variables in host memory, decode every entry.
#include "module.hpp"

#include "decode.hpp"

namespace ptxsim {
namespace {

void read_target(const std::string& target, Module* module) {
  module->target = target;
  if (target.rfind("sm_", 0) != 0) throw SimError("parse", "unknown .target " + target);
  size_t used = 0;
  module->sm = std::stoi(target.substr(3), &used);
  std::string suffix = target.substr(3 + used);
  module->arch_specific = suffix == "a";
  if (!suffix.empty() && suffix != "a") throw SimError("unsupported", ".target " + target + " is not implemented");
  if (module->sm > 90)
    throw SimError("unsupported", ".target " + target + " is newer than sm_90a, the newest simulated");
}

void place_global(const Variable& var, Module* module) {
  if (var.is_extern && !var.bytes)
    throw SimError("unsupported", "extern variable '" + var.name + "' is not defined in this module", var.line);
  u64 align = std::max<u64>(var.align, 16);
  module->storage.push_back(std::make_unique<u8[]>(var.bytes + align));
  u8* data = module->storage.back().get();
  data += (align - reinterpret_cast<uintptr_t>(data) % align) % align;
  std::memset(data, 0, var.bytes);
  if (!var.init.empty()) std::memcpy(data, var.init.data(), var.init.size());
  module->globals.push_back({var.name, data, var.bytes, var.space != Space::Const});
}

}  // namespace

std::unique_ptr<Module> load_module(const std::string& source, bool collect_unsupported) {
  RawModule raw = parse_ptx(source);
  auto module = std::make_unique<Module>();
  module->version = raw.version;
  read_target(raw.target, module.get());
  for (const Variable& var : raw.variables)
    if (var.space == Space::Global || var.space == Space::Const) place_global(var, module.get());
  for (const RawEntry& entry : raw.entries)
    for (const Variable& var : entry.variables)
      if (var.space == Space::Global || var.space == Space::Const) place_global(var, module.get());
  module->entries.resize(raw.entries.size());
  for (size_t k = 0; k < raw.entries.size(); ++k)
    EntryBuilder(*module, raw, raw.entries[k], &module->entries[k]).build(collect_unsupported);
  return module;
}

}  // namespace ptxsim
