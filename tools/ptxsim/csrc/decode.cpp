// SPDX-License-Identifier: Apache-2.0
// Entry building: slots for registers, constants and special registers, symbol resolution, one pass over the raw
// instructions through the family table, branch targets. Not responsible for the meaning of any opcode.
#include "decode.hpp"

#include <algorithm>

namespace ptxsim {

int EntryBuilder::reg_width(int reg) const {
  Ty type = reg_type(reg);
  if (type == Ty::Pred) return 1;
  int bytes = type_bytes(type);
  return bytes <= 2 ? 16 : bytes * 8;
}

EntryBuilder::EntryBuilder(const Module& module, const RawModule& raw_module, const RawEntry& raw, Entry* entry)
    : module_(module), raw_module_(raw_module), raw_(raw), entry_(entry) {
  entry_->num_preds = kPredFirst;
  std::map<std::string, int> counts;
  reg_slots_.resize(raw.regs.size());
  std::vector<u32> wide = assign_register_slots(raw, &entry_->reg_words);
  entry_->data_words = entry_->reg_words;
  for (size_t i = 0; i < raw.regs.size(); ++i) {
    Ty type = raw.regs[i].type;
    ++counts[type == Ty::Pred ? "pred" : "b" + std::to_string(reg_width(static_cast<int>(i)))];
    reg_slots_[i] = type == Ty::Pred ? entry_->num_preds++ : wide[i];
  }
  for (auto& item : counts) entry_->register_counts.push_back(item);
}

u32 EntryBuilder::const_slot(u64 bits, int width, ConstSlot::Kind kind) {
  if (width < 32) width = 32;
  if (width == 32) bits &= 0xffffffffu;
  auto key = std::make_pair(bits, std::make_pair(width, static_cast<int>(kind)));
  auto found = const_index_.find(key);
  if (found != const_index_.end()) return found->second;
  u32 slot = entry_->reg_words;
  entry_->reg_words += static_cast<u32>(width);
  entry_->consts.push_back({kind, bits, slot, static_cast<u8>(width)});
  return const_index_[key] = slot;
}

u32 EntryBuilder::special_slot(const std::string& name, int width) {
  Special special;
  int own_width = 32;
  if (!special_from_name(name, &special, &own_width)) throw UnsupportedReason{"special register %" + name};
  if (is_dynamic(special)) throw UnsupportedReason{"%" + name + " is supported in mov only"};
  if (width < 32) width = 32;
  auto key = std::make_pair(static_cast<int>(special), width);
  auto found = special_index_.find(key);
  if (found != special_index_.end()) return found->second;
  u32 slot = entry_->reg_words;
  entry_->reg_words += static_cast<u32>(width);
  entry_->specials.push_back({special, slot, static_cast<u8>(width)});
  return special_index_[key] = slot;
}

const Variable* EntryBuilder::find_variable(const std::string& name, int scope) const {
  for (int s = scope; s >= 0; s = raw_.scope_parent[static_cast<size_t>(s)])
    for (const Variable& var : raw_.variables)
      if (var.scope == s && var.name == name) return &var;
  for (const Variable& var : raw_module_.variables)
    if (var.name == name) return &var;
  return nullptr;
}

u32 EntryBuilder::place(const Variable* var, u32* frame) {
  auto found = placed_.find(var);
  if (found != placed_.end()) return found->second;
  u32 offset = (*frame + var->align - 1) / var->align * var->align;
  *frame = offset + static_cast<u32>(var->bytes);
  return placed_[var] = offset;
}

u32 EntryBuilder::symbol_slot(const Operand& op, int scope, int width, Space* space) {
  Space ignored;
  if (!space) space = &ignored;
  u64 added = static_cast<u64>(op.offset);
  for (const Param& param : raw_.params)
    if (param.name == op.name) {
      *space = Space::Param;
      return const_slot(param.offset + added, width, ConstSlot::ParamAddress);
    }
  const Variable* var = find_variable(op.name, scope);
  if (!var) throw UnsupportedReason{"symbol '" + op.name + "' is not a variable or parameter of this module"};
  *space = var->space;
  switch (var->space) {
    case Space::Shared:
      if (var->bytes == 0) {
        dynamic_align_ = std::max(dynamic_align_, var->align);
        return const_slot(added, width, ConstSlot::DynamicShared);
      }
      return const_slot(place(var, &entry_->static_smem) + added, width);
    case Space::Local:
      return const_slot(place(var, &entry_->local_bytes) + added, width);
    case Space::Global:
    case Space::Const:
      for (const GlobalVariable& global : module_.globals)
        if (global.name == op.name) return const_slot(reinterpret_cast<u64>(global.data) + added, width);
      break;
    default:
      break;
  }
  throw UnsupportedReason{"address of '" + op.name + "'"};
}

u32 EntryBuilder::label(const std::string& name, int scope) const {
  for (int s = scope; s >= 0; s = raw_.scope_parent[static_cast<size_t>(s)])
    for (const Label& label : raw_.labels)
      if (label.scope == s && label.name == name) return label.index;
  throw SimError("parse", "label '" + name + "' is not defined in this scope");
}

std::vector<u32> EntryBuilder::target_list(const std::string& name, int scope) const {
  for (int s = scope; s >= 0; s = raw_.scope_parent[static_cast<size_t>(s)])
    for (const TargetList& list : raw_.target_lists) {
      if (list.scope != s || list.name != name) continue;
      std::vector<u32> targets;
      for (const std::string& one : list.labels) targets.push_back(label(one, s));
      return targets;
    }
  throw SimError("parse", "target list '" + name + "' is not defined in this scope");
}

const u32* EntryBuilder::keep(std::vector<u32> list) {
  entry_->ext_pool.push_back(std::move(list));
  return entry_->ext_pool.back().data();
}

void EntryBuilder::decode_one(const RawInst& raw, Inst* inst) {
  if (raw.guard >= 0) {
    if (reg_type(raw.guard) != Ty::Pred) throw SimError("parse", "guard is not a predicate register", raw.line);
    inst->guard = reg_slot(raw.guard);
    inst->guard_mode = raw.guard_negated ? 2 : 1;
  }
  auto found = op_table().find(raw.opcode);
  if (found == op_table().end()) throw UnsupportedReason{"instruction '" + raw.opcode + "'"};
  Decoding decoding(*this, raw, *inst);
  found->second(decoding);
  decoding.finish();
}

void EntryBuilder::build(bool collect_unsupported) {
  Entry& entry = *entry_;
  entry.name = raw_.name, entry.params = raw_.params;
  for (const Param& param : raw_.params) entry.param_bytes = param.offset + param.bytes;
  std::copy(raw_.maxntid, raw_.maxntid + 3, entry.maxntid);
  std::copy(raw_.reqntid, raw_.reqntid + 3, entry.reqntid);
  std::copy(raw_.reqcluster, raw_.reqcluster + 3, entry.reqcluster);
  entry.maxnreg = raw_.maxnreg, entry.minnctapersm = raw_.minnctapersm;
  std::vector<u8> is_exit;
  for (const RawInst& raw : raw_.insts) {
    Inst inst;
    inst.index = static_cast<u32>(entry.insts.size());
    try {
      decode_one(raw, &inst);
    } catch (const UnsupportedReason& reason) {
      if (!collect_unsupported)
        throw SimError("unsupported",
                       "kernel " + raw_.name + ", PTX line " + std::to_string(raw.line) + ": " + reason.reason +
                           " is not implemented: " + raw.text,
                       raw.line, raw.text);
      entry.unsupported.push_back({raw.line, raw.text, reason.reason});
    } catch (SimError& error) {
      error.line = raw.line, error.text = raw.text;
      error.message = "PTX line " + std::to_string(raw.line) + ": " + error.message + ": " + raw.text;
      throw;
    }
    is_exit.push_back(raw.opcode == "exit" || raw.opcode == "ret" || raw.opcode == "trap");
    entry.insts.push_back(inst);
    entry.lines.push_back(raw.line);
    entry.texts.push_back(raw.text);
  }
  append_implicit_exit();
  is_exit.push_back(1);
  assign_reconvergence(&entry.insts, is_exit);
  finish_frames();
  find_matrix_touches();
}

// Which of the registers that wgmma uses each instruction touches: the run loop looks after them.
void EntryBuilder::find_matrix_touches() {
  std::vector<u8> used(raw_.regs.size(), 0);
  bool any = false;
  auto mark = [&](const Operand& op) {
    for (const Operand& e : op.elems)
      if (e.kind == Operand::Reg) used[static_cast<size_t>(e.reg)] = 1, any = true;
  };
  for (const RawInst& raw : raw_.insts)
    if (raw.opcode == "wgmma" && raw.operands.size() > 2) mark(raw.operands[0]), mark(raw.operands[1]);
  if (!any) return;
  auto touch = [&](auto&& self, const Operand& op, u32 written) -> void {
    if (op.kind == Operand::Reg && op.reg >= 0 && used[static_cast<size_t>(op.reg)])
      entry_->matrix_touches.push_back(reg_slot(op.reg) / kLanes * 2 + written);
    for (const Operand& e : op.elems) self(self, e, op.kind == Operand::Memory ? 0u : written);
  };
  for (const RawInst& raw : raw_.insts) {
    entry_->matrix_index.push_back(static_cast<u32>(entry_->matrix_touches.size()));
    if (raw.opcode == "wgmma") continue;
    for (size_t k = 0; k < raw.operands.size(); ++k)
      touch(touch, raw.operands[k], k == 0 && !reads_first_operand(raw.opcode));
  }
  for (int k = 0; k < 2; ++k) entry_->matrix_index.push_back(static_cast<u32>(entry_->matrix_touches.size()));
}

// Falling off the end of a body is `ret`.
void EntryBuilder::append_implicit_exit() {
  RawInst raw;
  raw.opcode = "ret";
  Inst inst;
  inst.index = static_cast<u32>(entry_->insts.size());
  decode_one(raw, &inst);
  entry_->insts.push_back(inst);
  entry_->lines.push_back(raw_.insts.empty() ? raw_.line : raw_.insts.back().line);
  entry_->texts.push_back("(end of body)");
}

void EntryBuilder::finish_frames() {
  // Static shared memory that the body declares counts even when nothing refers to it, as in the driver.
  for (const Variable& var : raw_.variables)
    if (var.space == Space::Shared && var.bytes) place(&var, &entry_->static_smem);
  entry_->dynamic_smem_offset = (entry_->static_smem + dynamic_align_ - 1) / dynamic_align_ * dynamic_align_;
  entry_->local_bytes = (entry_->local_bytes + 15) / 16 * 16;
}

const OpTable& op_table() {
  static const OpTable table = [] {
    OpTable t;
    add_integer_ops(t), add_wide_ops(t), add_bit_ops(t), add_float_ops(t), add_half_ops(t), add_compare_ops(t);
    add_convert_ops(t), add_move_ops(t), add_mufu_ops(t), add_memory_ops(t), add_atomic_ops(t), add_warp_ops(t);
    add_barrier_ops(t), add_control_ops(t), add_async_ops(t), add_matrix_ops(t), add_mma_ops(t);
    add_mbarrier_ops(t), add_wgmma_ops(t), add_cluster_ops(t);
    return t;
  }();
  return table;
}

}  // namespace ptxsim
