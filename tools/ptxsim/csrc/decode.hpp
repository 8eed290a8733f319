// SPDX-License-Identifier: Apache-2.0
// What an instruction family needs to turn a RawInst into an Inst: modifier consumption (whatever is left over is
// unsupported), operand slots with width checks, the family table. Families live in ops_*.cpp.
#pragma once

#include <initializer_list>
#include <map>
#include <unordered_map>

#include "error.hpp"
#include "module.hpp"

namespace ptxsim {

struct UnsupportedReason {
  std::string reason;
};

// Builds one entry: owns slot assignment and symbol resolution.
class EntryBuilder {
 public:
  EntryBuilder(const Module& module, const RawModule& raw_module, const RawEntry& raw, Entry* entry);
  void build(bool collect_unsupported);

  u32 reg_slot(int reg) const { return reg_slots_[static_cast<size_t>(reg)]; }
  Ty reg_type(int reg) const { return raw_.regs[static_cast<size_t>(reg)].type; }
  int reg_width(int reg) const;
  u32 const_slot(u64 bits, int width, ConstSlot::Kind kind = ConstSlot::Value);
  u32 special_slot(const std::string& name, int width);
  u32 symbol_slot(const Operand& op, int scope, int width, Space* space = nullptr);
  u32 sink_slot(int width) { return const_slot(0, width, ConstSlot::Sink); }
  u32 label(const std::string& name, int scope) const;
  std::vector<u32> target_list(const std::string& name, int scope) const;
  const u32* keep(std::vector<u32> list);
  Entry& entry() { return *entry_; }
  int sm() const { return module_.sm; }
  bool arch_specific() const { return module_.arch_specific; }

 private:
  const Variable* find_variable(const std::string& name, int scope) const;
  u32 place(const Variable* var, u32* frame);
  void decode_one(const RawInst& raw, Inst* inst);
  void append_implicit_exit();
  void finish_frames();
  void find_matrix_touches();

  const Module& module_;
  const RawModule& raw_module_;
  const RawEntry& raw_;
  Entry* entry_;
  std::vector<u32> reg_slots_;
  std::map<std::pair<u64, std::pair<int, int>>, u32> const_index_;
  std::map<std::pair<int, int>, u32> special_index_;
  std::unordered_map<const Variable*, u32> placed_;
  u32 dynamic_align_ = 16;
};

// One instruction being decoded.
class Decoding {
 public:
  Decoding(EntryBuilder& builder_, const RawInst& raw_, Inst& inst_)
      : builder(builder_), raw(raw_), inst(inst_), mods_(raw_.mods) {}

  EntryBuilder& builder;
  const RawInst& raw;
  Inst& inst;

  // ---- modifiers
  bool take(const std::string& mod);
  std::string take_any(std::initializer_list<const char*> mods);  // "" when none is there
  Ty take_type();                                                 // first remaining type modifier, else unsupported
  Ty peek_type() const;                                           // None when there is none
  void finish() const;                                            // unsupported when a modifier is left
  const std::vector<std::string>& left() const { return mods_; }
  [[noreturn]] void unsupported(const std::string& reason) const { throw UnsupportedReason{reason}; }
  void require_sm(int sm, const std::string& what) const;  // unsupported below that .target, as in ptxas
  [[noreturn]] void malformed(const std::string& reason) const;

  // ---- operands
  size_t count() const { return raw.operands.size(); }
  void need(size_t n) const { need(n, n); }
  void need(size_t low, size_t high) const;
  const Operand& op(size_t k) const { return raw.operands[k]; }
  u32 src(size_t k, Ty type, bool any_width = false) { return src(op(k), type, any_width); }
  u32 src(const Operand& operand, Ty type, bool any_width = false);
  u32 dst(size_t k, Ty type, bool any_width = false) { return dst(op(k), type, any_width); }
  u32 dst(const Operand& operand, Ty type, bool any_width = false);
  u32 pred_dst(const Operand& operand);
  u32 pred_src(const Operand& operand, u32 negation_bit);  // sets the bit in inst.pneg
  bool is_pred(const Operand& operand) const;
  int width_of(const Operand& operand, Ty type) const;  // register width, or the type's for others
  void use(ExecFn fn, Cls cls) { inst.fn = fn, inst.cls = cls; }

 private:
  std::vector<std::string> mods_;
};

using DecodeFn = void (*)(Decoding&);
using OpTable = std::unordered_map<std::string, DecodeFn>;

// Each family adds its opcodes; a new family is one more line in decode.cpp.
void add_integer_ops(OpTable&);
void add_wide_ops(OpTable&);
void add_bit_ops(OpTable&);
void add_float_ops(OpTable&);
void add_half_ops(OpTable&);
void add_compare_ops(OpTable&);
void add_convert_ops(OpTable&);
void add_move_ops(OpTable&);
void add_mufu_ops(OpTable&);
void add_memory_ops(OpTable&);
void add_atomic_ops(OpTable&);
void add_warp_ops(OpTable&);
void add_barrier_ops(OpTable&);
void add_control_ops(OpTable&);
void add_async_ops(OpTable&);
void add_matrix_ops(OpTable&);
void add_mma_ops(OpTable&);
void add_mbarrier_ops(OpTable&);
void add_wgmma_ops(OpTable&);
void add_cluster_ops(OpTable&);

const OpTable& op_table();

// Register file layout: slot of every non-predicate register, *words grows by what they need.
std::vector<u32> assign_register_slots(const RawEntry& raw, u32* words);

bool reads_first_operand(const std::string& opcode);

// Fills Inst::reconv of every branch with the immediate post-dominator.
void assign_reconvergence(std::vector<Inst>* insts, const std::vector<u8>& is_exit);

inline int type_width(Ty type) { return type_bytes(type) <= 4 ? 32 : type_bytes(type) * 8; }

}  // namespace ptxsim
