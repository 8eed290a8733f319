// SPDX-License-Identifier: Apache-2.0
// The parser: module directives, variables, entries, scopes, instructions. It resolves register names through their
// scopes and leaves every other name to the decoder. Debug directives are skipped, unknown directives are errors.
#include <unordered_map>

#include "ast.hpp"
#include "lexer.hpp"

namespace ptxsim {
namespace {

struct RegRange {
  int base, count;
};

struct Scope {
  int id;
  std::unordered_map<std::string, int> names;
  std::unordered_map<std::string, RegRange> ranges;
};

class Parser {
 public:
  explicit Parser(const std::string& source) : source_(source), tokens_(tokenize(source)) {}

  RawModule run() {
    while (peek().kind != Tok::End) module_item();
    if (module_.version.empty()) fail("no .version directive: is this PTX?");
    if (module_.target.empty()) fail("no .target directive");
    return std::move(module_);
  }

 private:
  // ---- tokens
  const Token& peek(size_t ahead = 0) const { return tokens_[std::min(pos_ + ahead, tokens_.size() - 1)]; }
  const Token& take() { return tokens_[pos_ < tokens_.size() - 1 ? pos_++ : pos_]; }
  bool is(const char* punct) const { return peek().kind == Tok::Punct && peek().text == punct; }
  bool accept(const char* punct) { return is(punct) ? (take(), true) : false; }
  bool accept_dot(const char* word) { return peek().kind == Tok::Dot && peek().text == word ? (take(), true) : false; }
  [[noreturn]] void fail(const std::string& what) const {
    throw SimError("parse", "PTX line " + std::to_string(peek().line) + ": " + what + ", got '" + peek().text + "'",
                   peek().line, peek().text);
  }
  void expect(const char* punct) {
    if (!accept(punct)) fail(std::string("expected '") + punct + "'");
  }
  std::string identifier(const char* what) {
    if (peek().kind != Tok::Ident) fail(std::string("expected ") + what);
    return take().text;
  }
  u64 integer() {
    bool negative = accept("-");
    if (peek().kind != Tok::Int) fail("expected an integer");
    u64 value = take().bits;
    return negative ? 0 - value : value;
  }
  void skip_line() {
    int line = peek().line;
    while (peek().kind != Tok::End && peek().line == line) take();
  }
  void skip_to_semicolon() {
    while (peek().kind != Tok::End && !is(";")) take();
    expect(";");
  }
  void skip_braces() {
    while (peek().kind != Tok::End && !is("{")) take();
    int depth = 0;
    do {
      if (peek().kind == Tok::End) fail("expected '}'");
      if (is("{")) ++depth;
      if (is("}")) --depth;
      take();
    } while (depth);
  }

  // ---- module level
  void module_item() {
    if (accept("@")) return skip_line();  // @@DWARF
    if (peek().kind != Tok::Dot) fail("expected a directive");
    std::string word = peek().text;
    if (word == "version") return take(), version();
    if (word == "target") return take(), target();
    if (word == "address_size") {
      take();
      module_.address_size = static_cast<int>(integer());
      if (module_.address_size != 64) fail("only .address_size 64 is supported");
      return;
    }
    if (word == "file" || word == "loc") return skip_line();
    if (word == "section") return skip_braces();
    if (word == "pragma") return skip_to_semicolon();
    linkage_item();
  }

  void version() {
    module_.version = take().text;
    while (peek().kind == Tok::Dot && peek(-1).line == peek().line) module_.version += "." + take().text;
  }

  void target() {
    module_.target = identifier("a target");
    while (accept(",")) identifier("a target option");
  }

  void linkage_item() {
    bool is_extern = false;
    for (;;) {
      if (accept_dot("extern"))
        is_extern = true;
      else if (!accept_dot("visible") && !accept_dot("weak") && !accept_dot("common"))
        break;
    }
    if (accept_dot("entry")) return entry();
    if (accept_dot("func")) return function();
    variable(&module_.variables, is_extern, 0);
  }

  // A .func body is kept out of the module: a call of it is reported as unsupported where it stands.
  void function() {
    while (!is(";") && !is("{")) {
      if (peek().kind == Tok::End) fail("unfinished .func");
      take();
    }
    if (!accept(";")) skip_braces();
  }

  Space space_from(const std::string& word) {
    if (word == "global") return Space::Global;
    if (word == "shared") return Space::Shared;
    if (word == "local") return Space::Local;
    if (word == "const") return Space::Const;
    if (word == "param") return Space::Param;
    fail("unknown directive ." + word);
  }

  void variable(std::vector<Variable>* out, bool is_extern, int scope) {
    Variable var;
    var.line = peek().line, var.scope = scope, var.is_extern = is_extern;
    if (peek().kind != Tok::Dot) fail("expected a state space");
    var.space = space_from(peek().text);
    take();
    u64 vector = 1;
    for (; peek().kind == Tok::Dot; take()) {
      const std::string& word = peek().text;
      if (word == "align") {
        var.align = static_cast<u32>((take(), peek().bits));
      } else if (word == "v2" || word == "v4") {
        vector = word[1] - '0';
      } else if (word == "attribute") {
        fail("variable attributes are not supported");
      } else if ((var.type = type_from_name(word)) == Ty::None) {
        fail("unknown type ." + word);
      }
    }
    for (;;) {
      Variable one = var;
      declarator(&one, vector);
      out->push_back(one);
      if (!accept(",")) break;
    }
    expect(";");
  }

  void declarator(Variable* var, u64 vector) {
    var->name = identifier("a variable name");
    u64 element = static_cast<u64>(type_bytes(var->type)) * vector, count = 1;
    bool unsized = false;
    while (accept("[")) {
      if (is("]"))
        unsized = true;
      else
        count *= integer();
      expect("]");
    }
    var->align = std::max<u32>(var->align, static_cast<u32>(element));
    if (accept("=")) initializer(var);
    if (unsized && !var->init.empty())
      var->bytes = var->init.size();
    else
      var->bytes = unsized ? 0 : element * count;
    if (var->init.size() > var->bytes) fail("initializer is longer than the variable");
  }

  void initializer(Variable* var) {
    if (accept("{")) {
      while (!accept("}")) {
        initializer(var);
        accept(",");
      }
      return;
    }
    bool negative = accept("-");
    const Token token = take();
    u64 bits = token.bits;
    if (token.kind == Tok::Float64 && var->type == Ty::F32)
      bits = bit_cast<u32>(static_cast<float>(bit_cast<double>(bits))) ^ (negative ? 0x80000000u : 0u);
    else if (token.kind == Tok::Float64)
      bits ^= negative ? 1ull << 63 : 0;
    else if (token.kind == Tok::Int)
      bits = negative ? 0 - bits : bits;
    else if (token.kind != Tok::Float32)
      throw SimError("unsupported", "PTX line " + std::to_string(token.line) + ": initializer '" + token.text + "'",
                     token.line, token.text);
    for (int i = 0; i < type_bytes(var->type); ++i) var->init.push_back(static_cast<u8>(bits >> (8 * i)));
  }

  // ---- entries
  void entry() {
    RawEntry raw;
    raw.line = peek().line;
    raw.name = identifier("an entry name");
    entry_ = &raw;
    if (accept("(")) parameters();
    while (peek().kind == Tok::Dot) entry_directive();
    if (accept(";")) return;  // declaration only
    expect("{");
    scopes_.clear();
    open_scope(-1);
    body();
    module_.entries.push_back(std::move(raw));
  }

  void parameters() {
    u64 offset = 0;
    while (!accept(")")) {
      if (!accept_dot("param")) fail("expected .param");
      Param param;
      u64 element = 0;
      while (peek().kind == Tok::Dot) {
        std::string word = take().text;
        if (word == "align") {
          u32 align = static_cast<u32>(integer());
          if (!pointer_) param.align = align;
        } else if (word == "ptr") {
          pointer_ = true;
        } else if (Ty type = type_from_name(word); type != Ty::None) {
          element = static_cast<u64>(type_bytes(type));
        } else if (!pointer_ || !(word == "global" || word == "shared" || word == "const" || word == "local")) {
          fail("unknown parameter attribute ." + word);
        }
      }
      pointer_ = false;
      param.name = identifier("a parameter name");
      u64 count = 1;
      while (accept("[")) {
        count *= integer();
        expect("]");
      }
      param.bytes = element * count;
      param.align = std::max<u32>(param.align, static_cast<u32>(element));
      offset = (offset + param.align - 1) / param.align * param.align;
      param.offset = offset;
      offset += param.bytes;
      entry_->params.push_back(param);
      accept(",");
    }
  }

  void triple(u32* out) {
    out[0] = static_cast<u32>(integer());
    out[1] = out[2] = 1;
    for (int i = 1; i < 3 && accept(","); ++i) out[i] = static_cast<u32>(integer());
  }

  void entry_directive() {
    std::string word = take().text;
    if (word == "maxntid")
      triple(entry_->maxntid);
    else if (word == "reqntid")
      triple(entry_->reqntid);
    else if (word == "reqnctapercluster")
      triple(entry_->reqcluster);
    else if (word == "maxnreg")
      entry_->maxnreg = static_cast<u32>(integer());
    else if (word == "minnctapersm")
      entry_->minnctapersm = static_cast<u32>(integer());
    else if (word == "maxclusterrank")
      integer();
    else if (word == "pragma")
      skip_to_semicolon();
    else if (word != "explicitcluster" && word != "noreturn" && word != "blocksareclusters")
      fail("unknown entry directive ." + word);
  }

  void open_scope(int parent) {
    int id = static_cast<int>(entry_->scope_parent.size());
    entry_->scope_parent.push_back(parent);
    scopes_.push_back(Scope{id, {}, {}});
  }

  void body() {
    for (;;) {
      if (peek().kind == Tok::End) fail("entry body is never closed");
      if (accept("}")) {
        scopes_.pop_back();
        if (scopes_.empty()) return;
      } else if (accept("{")) {
        open_scope(scopes_.back().id);
      } else if (peek().kind == Tok::Dot) {
        body_directive();
      } else if (accept(";")) {
      } else {
        statement();
      }
    }
  }

  void body_directive() {
    std::string word = peek().text;
    if (word == "loc" || word == "file") return skip_line();
    if (word == "section") return skip_braces();
    if (word == "pragma" || word == "callprototype") return skip_to_semicolon();
    if (word == "reg") return take(), registers();
    variable(&entry_->variables, false, scopes_.back().id);
  }

  void registers() {
    Ty type = type_from_name(peek().text);
    if (peek().kind != Tok::Dot || type == Ty::None)
      fail("expected a register type (vector registers are unsupported)");
    take();
    do {
      std::string name = identifier("a register name");
      int base = static_cast<int>(entry_->regs.size());
      if (accept("<")) {
        int count = static_cast<int>(integer());
        expect(">");
        for (int i = 0; i < count; ++i) entry_->regs.push_back({name + std::to_string(i), type});
        scopes_.back().ranges[name] = RegRange{base, count};
      } else {
        entry_->regs.push_back({name, type});
        scopes_.back().names[name] = base;
      }
    } while (accept(","));
    expect(";");
  }

  int find_register(const std::string& name) const {
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

  // ---- statements
  void statement() {
    if (peek().kind == Tok::Ident && peek(1).kind == Tok::Punct && peek(1).text == ":") {
      if (peek(2).kind == Tok::Dot && peek(2).text == "branchtargets") return target_list();
      entry_->labels.push_back({take().text, scopes_.back().id, static_cast<u32>(entry_->insts.size())});
      take();
      return;
    }
    RawInst inst;
    size_t first = pos_;
    inst.line = peek().line, inst.scope = scopes_.back().id;
    if (accept("@")) {
      inst.guard_negated = accept("!");
      std::string name = identifier("a guard predicate");
      inst.guard = find_register(name);
      if (inst.guard < 0) fail("undeclared guard predicate " + name);
    }
    inst.opcode = identifier("an instruction");
    while (peek().kind == Tok::Dot) inst.mods.push_back(take().text);
    if (inst.opcode == "call") {
      while (peek().kind != Tok::End && !is(";")) take();
    } else if (!is(";")) {
      do inst.operands.push_back(operand());
      while (accept(","));
    }
    inst.text = squeeze(tokens_[first].begin, peek().begin);
    expect(";");
    entry_->insts.push_back(std::move(inst));
  }

  void target_list() {
    TargetList list;
    list.name = take().text, list.scope = scopes_.back().id;
    take(), take();
    do list.labels.push_back(identifier("a label"));
    while (accept(","));
    expect(";");
    entry_->target_lists.push_back(std::move(list));
  }

  std::string squeeze(size_t begin, size_t end) const {
    std::string out;
    for (size_t i = begin; i < end; ++i) {
      bool blank = std::isspace(static_cast<unsigned char>(source_[i])) != 0;
      if (!blank)
        out += source_[i];
      else if (!out.empty() && out.back() != ' ')
        out += ' ';
    }
    while (!out.empty() && out.back() == ' ') out.pop_back();
    return out;
  }

  Operand operand() {
    Operand first = simple_operand();
    if (!accept("|")) return first;
    Operand pair;
    pair.kind = Operand::Pair;
    pair.elems = {first, simple_operand()};
    return pair;
  }

  Operand simple_operand() {
    Operand op;
    if (accept("!")) {
      op = simple_operand();
      op.negated = !op.negated;
      return op;
    }
    if (accept("{")) {
      op.kind = Operand::Vector;
      while (!accept("}")) {
        op.elems.push_back(operand());
        accept(",");
      }
      return op;
    }
    if (accept("[")) return memory_operand();
    if (peek().kind == Tok::Ident) return named_operand();
    return literal();
  }

  Operand literal() {
    Operand op;
    bool negative = accept("-");
    if (!negative) accept("+");
    const Token token = peek();
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
      fail("expected an operand");
    }
    take();
    return op;
  }

  Operand named_operand() {
    Operand op;
    std::string name = take().text;
    if (name == "_") return op;
    if (name == "WARP_SZ") {
      op.kind = Operand::Int, op.bits = kLanes;
      return op;
    }
    op.reg = find_register(name);
    if (op.reg >= 0) {
      op.kind = Operand::Reg;
    } else if (name[0] == '%') {
      op.kind = Operand::Special;
      op.name = name.substr(1);
      if (peek().kind == Tok::Dot) op.name += "." + take().text;
    } else {
      op.kind = Operand::Symbol;
      op.name = name;
      if (is("+") && peek(1).kind == Tok::Int) {
        take();
        op.offset = static_cast<i64>(integer());
      }
    }
    return op;
  }

  Operand memory_operand() {
    Operand op;
    op.kind = Operand::Memory;
    op.elems.push_back(peek().kind == Tok::Ident ? named_operand() : literal());
    op.offset = op.elems[0].offset;
    op.elems[0].offset = 0;
    if (accept("+"))
      op.offset += static_cast<i64>(integer());
    else if (is("-"))
      op.offset += static_cast<i64>(integer());
    while (accept(",")) op.elems.push_back(simple_operand());
    expect("]");
    return op;
  }

  const std::string& source_;
  std::vector<Token> tokens_;
  size_t pos_ = 0;
  RawModule module_;
  RawEntry* entry_ = nullptr;
  std::vector<Scope> scopes_;
  bool pointer_ = false;
};

}  // namespace

RawModule parse_ptx(const std::string& source) { return Parser(source).run(); }

}  // namespace ptxsim
