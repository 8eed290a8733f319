// SPDX-License-Identifier: Apache-2.0
// What the parser hands to the decoder: entries as lists of undecoded instructions, registers and variables already
// resolved through the scopes they were declared in. No semantics.
#pragma once

#include <string>
#include <vector>

#include "types.hpp"

namespace ptxsim {

struct Operand {
  enum Kind : u8 { Reg, Int, Float32, Float64, Symbol, Special, Vector, Memory, Pair, Sink } kind = Sink;
  bool negated = false;        // !%p1
  int reg = -1;                // Reg: index into RawEntry::regs
  u64 bits = 0;                // literals
  std::string name;            // Symbol (variable, parameter or label), Special ("tid.x")
  i64 offset = 0;              // Memory: displacement; Symbol: added constant
  std::vector<Operand> elems;  // Vector, Pair; Memory: base (and TMA coordinates)
};

struct RawInst {
  std::string opcode;
  std::vector<std::string> mods;
  std::vector<Operand> operands;
  int guard = -1;  // register index of the guard predicate
  bool guard_negated = false;
  int line = 0, scope = 0;
  std::string text;
};

struct RegDecl {
  std::string name;
  Ty type;
};

enum class Space : u8 { Generic, Global, Shared, Local, Const, Param, Cluster };

struct Variable {
  std::string name;
  Space space = Space::Global;
  Ty type = Ty::B8;
  u64 bytes = 0;  // 0: unsized extern array
  u32 align = 1;
  bool is_extern = false;
  std::vector<u8> init;
  int scope = 0, line = 0;
};

struct Param {
  std::string name;
  u64 bytes = 0, offset = 0;
  u32 align = 1;
};

struct Label {
  std::string name;
  int scope = 0;
  u32 index = 0;  // instruction that follows
};

struct TargetList {  // name: .branchtargets a, b, ...;
  std::string name;
  int scope = 0;
  std::vector<std::string> labels;
};

struct RawEntry {
  std::string name;
  std::vector<Param> params;
  std::vector<RegDecl> regs;
  std::vector<Variable> variables;  // declared inside the body
  std::vector<Label> labels;
  std::vector<TargetList> target_lists;
  std::vector<int> scope_parent;  // scope 0 is the body
  std::vector<RawInst> insts;
  u32 maxntid[3] = {0, 0, 0}, reqntid[3] = {0, 0, 0};
  u32 reqcluster[3] = {0, 0, 0};
  u32 maxnreg = 0, minnctapersm = 0;
  int line = 0;
};

struct RawModule {
  std::string version, target;
  int address_size = 64;
  std::vector<Variable> variables;
  std::vector<RawEntry> entries;
};

RawModule parse_ptx(const std::string& source);  // throws SimError "parse" or "unsupported"

}  // namespace ptxsim
