// SPDX-License-Identifier: Apache-2.0
// Decoding: the helpers with which a family reads one instruction's modifiers and operands.
#include <algorithm>

#include "decode.hpp"

namespace ptxsim {

bool Decoding::take(const std::string& mod) {
  auto found = std::find(mods_.begin(), mods_.end(), mod);
  if (found == mods_.end()) return false;
  mods_.erase(found);
  return true;
}

std::string Decoding::take_any(std::initializer_list<const char*> mods) {
  for (const char* mod : mods)
    if (take(mod)) return mod;
  return "";
}

Ty Decoding::peek_type() const {
  for (const std::string& mod : mods_)
    if (Ty type = type_from_name(mod); type != Ty::None) return type;
  return Ty::None;
}

Ty Decoding::take_type() {
  Ty type = peek_type();
  if (type == Ty::None) unsupported("'" + raw.opcode + "' without a known type");
  take(type_name(type));
  return type;
}

void Decoding::finish() const {
  if (!mods_.empty()) unsupported("modifier ." + mods_.front() + " of " + raw.opcode);
  if (!inst.fn) unsupported("this form of " + raw.opcode);
}

void Decoding::require_sm(int sm, const std::string& what) const {
  if (builder.sm() < sm) unsupported(what + " (needs .target sm_" + std::to_string(sm) + ")");
}

void Decoding::malformed(const std::string& reason) const { throw SimError("parse", reason, raw.line, raw.text); }

void Decoding::need(size_t low, size_t high) const {
  if (count() >= low && count() <= high) return;
  std::string wanted = low == high ? std::to_string(low) : std::to_string(low) + " to " + std::to_string(high);
  malformed(raw.opcode + " takes " + wanted + " operands, got " + std::to_string(count()));
}

bool Decoding::is_pred(const Operand& operand) const {
  return operand.kind == Operand::Reg && builder.reg_type(operand.reg) == Ty::Pred;
}

int Decoding::width_of(const Operand& operand, Ty type) const {
  if (operand.kind == Operand::Reg) return builder.reg_width(operand.reg);
  int width = type_bytes(type) * 8;
  return width < 16 ? 16 : width;
}

u32 Decoding::src(const Operand& operand, Ty type, bool any_width) {
  int width = std::max(type_bytes(type) * 8, 16);
  switch (operand.kind) {
    case Operand::Reg: {
      int own = builder.reg_width(operand.reg);
      if (own == 1) malformed("predicate register where a ." + std::string(type_name(type)) + " is needed");
      if (own != width && !(any_width && own > width))
        malformed(std::to_string(own) + "-bit register where ." + type_name(type) + " is needed");
      return builder.reg_slot(operand.reg);
    }
    case Operand::Int: {
      u64 bits = operand.bits;
      if (type == Ty::F32 || type == Ty::F64) malformed("integer literal where a float is needed");
      if (width == 16) bits &= 0xffffu;
      return builder.const_slot(bits, width);
    }
    case Operand::Float32:
      if (type == Ty::F64) return builder.const_slot(bit_cast<u64>(double(bit_cast<float>(u32(operand.bits)))), 64);
      return builder.const_slot(operand.bits, width);
    case Operand::Float64:
      if (width == 32) return builder.const_slot(bit_cast<u32>(float(bit_cast<double>(operand.bits))), 32);
      return builder.const_slot(operand.bits, width);
    case Operand::Special:
      return builder.special_slot(operand.name, width);
    case Operand::Symbol:
      return builder.symbol_slot(operand, raw.scope, width);
    default:
      malformed("operand kind not allowed here");
  }
}

u32 Decoding::dst(const Operand& operand, Ty type, bool any_width) {
  int width = std::max(type_bytes(type) * 8, 16);
  if (operand.kind == Operand::Sink) return builder.sink_slot(width);
  if (operand.kind != Operand::Reg) malformed("destination is not a register");
  int own = builder.reg_width(operand.reg);
  if (own == 1) malformed("predicate register as a ." + std::string(type_name(type)) + " destination");
  if (own != width && !(any_width && own > width))
    malformed(std::to_string(own) + "-bit register as a ." + type_name(type) + " destination");
  return builder.reg_slot(operand.reg);
}

u32 Decoding::pred_dst(const Operand& operand) {
  if (operand.kind == Operand::Sink) return kPredSink;
  if (!is_pred(operand)) malformed("destination is not a predicate register");
  return builder.reg_slot(operand.reg);
}

u32 Decoding::pred_src(const Operand& operand, u32 negation_bit) {
  if (operand.negated) inst.pneg |= 1u << negation_bit;
  if (operand.kind == Operand::Int) return operand.bits ? kPredTrue : kPredFalse;
  if (!is_pred(operand)) malformed("operand is not a predicate register");
  return builder.reg_slot(operand.reg);
}

}  // namespace ptxsim
