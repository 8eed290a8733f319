// SPDX-License-Identifier: Apache-2.0
// Guards, modifiers and operands of one instruction: literals, registers, symbols, vectors, pairs, addresses.
#include "instruction_parser.hpp"

#include <utility>

namespace ptxsim {
namespace {

class InstructionParser {
 public:
  InstructionParser(TokenCursor& in, const RegisterScopes& scopes) : in_(in), scopes_(scopes) {}

  RawInst instruction() {
    RawInst inst;
    size_t begin = in_.peek().begin;
    inst.line = in_.peek().line, inst.scope = scopes_.current();
    if (in_.accept("@")) {
      inst.guard_negated = in_.accept("!");
      std::string name = in_.identifier("a guard predicate");
      inst.guard = scopes_.find(name);
      if (inst.guard < 0) in_.fail("undeclared guard predicate " + name);
    }
    inst.opcode = in_.identifier("an instruction");
    while (in_.peek().kind == Tok::Dot) inst.mods.push_back(in_.take().text);
    if (inst.opcode == "call") {
      while (in_.peek().kind != Tok::End && !in_.is(";")) in_.take();
    } else if (!in_.is(";")) {
      do inst.operands.push_back(operand());
      while (in_.accept(","));
    }
    inst.text = in_.squeeze(begin, in_.peek().begin);
    in_.expect(";");
    return inst;
  }

 private:
  Operand operand() {
    Operand first = simple_operand();
    if (!in_.accept("|")) return first;
    Operand pair;
    pair.kind = Operand::Pair;
    pair.elems = {first, simple_operand()};
    return pair;
  }

  Operand simple_operand() {
    Operand op;
    if (in_.accept("!")) {
      op = simple_operand();
      op.negated = !op.negated;
      return op;
    }
    if (in_.accept("{")) {
      op.kind = Operand::Vector;
      while (!in_.accept("}")) {
        op.elems.push_back(operand());
        in_.accept(",");
      }
      return op;
    }
    if (in_.accept("[")) return memory_operand();
    if (in_.peek().kind == Tok::Ident) return named_operand();
    return literal();
  }

  Operand literal() {
    Operand op;
    bool negative = in_.accept("-");
    if (!negative) in_.accept("+");
    const Token token = in_.peek();
    op.bits = token.bits;
    if (token.kind == Tok::Int) {
      op.kind = Operand::Int;
      if (negative) op.bits = 0 - op.bits;
    } else if (token.kind == Tok::Float32) {
      op.kind = Operand::Float32;
      if (negative) op.bits ^= 0x80000000u;
    } else if (token.kind == Tok::Float64) {
      op.kind = Operand::Float64;
      if (negative) op.bits ^= 1ull << 63;
    } else {
      in_.fail("expected an operand");
    }
    in_.take();
    return op;
  }

  Operand named_operand() {
    Operand op;
    std::string name = in_.take().text;
    if (name == "_") return op;
    if (name == "WARP_SZ") {
      op.kind = Operand::Int, op.bits = kLanes;
      return op;
    }
    op.reg = scopes_.find(name);
    if (op.reg >= 0) {
      op.kind = Operand::Reg;
    } else if (name[0] == '%') {
      op.kind = Operand::Special;
      op.name = name.substr(1);
      if (in_.peek().kind == Tok::Dot) op.name += "." + in_.take().text;
    } else {
      op.kind = Operand::Symbol;
      op.name = name;
      if (in_.is("+") && in_.peek(1).kind == Tok::Int) {
        in_.take();
        op.offset = static_cast<i64>(in_.integer());
      }
    }
    return op;
  }

  Operand memory_operand() {
    Operand op;
    op.kind = Operand::Memory;
    op.elems.push_back(in_.peek().kind == Tok::Ident ? named_operand() : literal());
    op.offset = op.elems[0].offset;
    op.elems[0].offset = 0;
    if (in_.accept("+"))
      op.offset += static_cast<i64>(in_.integer());
    else if (in_.is("-"))
      op.offset += static_cast<i64>(in_.integer());
    while (in_.accept(",")) op.elems.push_back(simple_operand());
    in_.expect("]");
    return op;
  }

  TokenCursor& in_;
  const RegisterScopes& scopes_;
};

}  // namespace

RawInst parse_instruction(TokenCursor& in, const RegisterScopes& scopes) {
  return InstructionParser(in, scopes).instruction();
}

}  // namespace ptxsim
