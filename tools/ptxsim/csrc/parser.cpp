// SPDX-License-Identifier: Apache-2.0
// The parser of modules: directives, variables, entries, scopes, register declarations, labels. Debug directives are
// skipped, unknown directives are errors. Not responsible for instructions: instruction_parser.cpp reads them.
#include <algorithm>
#include <utility>

#include "ast.hpp"
#include "error.hpp"
#include "instruction_parser.hpp"
#include "register_scopes.hpp"
#include "token_cursor.hpp"

namespace ptxsim {
namespace {

class Parser {
 public:
  explicit Parser(const std::string& source) : in_(source) {}

  RawModule run() {
    while (in_.peek().kind != Tok::End) module_item();
    if (module_.version.empty()) in_.fail("no .version directive: is this PTX?");
    if (module_.target.empty()) in_.fail("no .target directive");
    return std::move(module_);
  }

 private:
  // ---- module level
  void module_item() {
    if (in_.accept("@")) return in_.skip_line();  // @@DWARF
    if (in_.peek().kind != Tok::Dot) in_.fail("expected a directive");
    std::string word = in_.peek().text;
    if (word == "version") return in_.take(), version();
    if (word == "target") return in_.take(), target();
    if (word == "address_size") {
      in_.take();
      module_.address_size = static_cast<int>(in_.integer());
      if (module_.address_size != 64) in_.fail("only .address_size 64 is supported");
      return;
    }
    if (word == "file" || word == "loc") return in_.skip_line();
    if (word == "section") return in_.skip_braces();
    if (word == "pragma") return in_.skip_to_semicolon();
    linkage_item();
  }

  void version() {
    module_.version = in_.take().text;
    while (in_.peek().kind == Tok::Dot && in_.peek(-1).line == in_.peek().line)
      module_.version += "." + in_.take().text;
  }

  void target() {
    module_.target = in_.identifier("a target");
    while (in_.accept(",")) in_.identifier("a target option");
  }

  void linkage_item() {
    bool is_extern = false;
    for (;;) {
      if (in_.accept_dot("extern"))
        is_extern = true;
      else if (!in_.accept_dot("visible") && !in_.accept_dot("weak") && !in_.accept_dot("common"))
        break;
    }
    if (in_.accept_dot("entry")) return entry();
    if (in_.accept_dot("func")) return function();
    variable(&module_.variables, is_extern, 0);
  }

  // A .func body is kept out of the module: a call of it is reported as unsupported where it stands.
  void function() {
    while (!in_.is(";") && !in_.is("{")) {
      if (in_.peek().kind == Tok::End) in_.fail("unfinished .func");
      in_.take();
    }
    if (!in_.accept(";")) in_.skip_braces();
  }

  Space space_from(const std::string& word) {
    if (word == "global") return Space::Global;
    if (word == "shared") return Space::Shared;
    if (word == "local") return Space::Local;
    if (word == "const") return Space::Const;
    if (word == "param") return Space::Param;
    in_.fail("unknown directive ." + word);
  }

  void variable(std::vector<Variable>* out, bool is_extern, int scope) {
    Variable var;
    var.line = in_.peek().line, var.scope = scope, var.is_extern = is_extern;
    if (in_.peek().kind != Tok::Dot) in_.fail("expected a state space");
    var.space = space_from(in_.peek().text);
    in_.take();
    u64 vector = 1;
    for (; in_.peek().kind == Tok::Dot; in_.take()) {
      const std::string& word = in_.peek().text;
      if (word == "align") {
        var.align = static_cast<u32>((in_.take(), in_.peek().bits));
      } else if (word == "v2" || word == "v4") {
        vector = word[1] - '0';
      } else if (word == "attribute") {
        in_.fail("variable attributes are not supported");
      } else if ((var.type = type_from_name(word)) == Ty::None) {
        in_.fail("unknown type ." + word);
      }
    }
    for (;;) {
      Variable one = var;
      declarator(&one, vector);
      out->push_back(one);
      if (!in_.accept(",")) break;
    }
    in_.expect(";");
  }

  void declarator(Variable* var, u64 vector) {
    var->name = in_.identifier("a variable name");
    u64 element = static_cast<u64>(type_bytes(var->type)) * vector, count = 1;
    bool unsized = false;
    while (in_.accept("[")) {
      if (in_.is("]"))
        unsized = true;
      else
        count *= in_.integer();
      in_.expect("]");
    }
    var->align = std::max<u32>(var->align, static_cast<u32>(element));
    if (in_.accept("=")) initializer(var);
    if (unsized && !var->init.empty())
      var->bytes = var->init.size();
    else
      var->bytes = unsized ? 0 : element * count;
    if (var->init.size() > var->bytes) in_.fail("initializer is longer than the variable");
  }

  void initializer(Variable* var) {
    if (in_.accept("{")) {
      while (!in_.accept("}")) {
        initializer(var);
        in_.accept(",");
      }
      return;
    }
    bool negative = in_.accept("-");
    const Token token = in_.take();
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
    raw.line = in_.peek().line;
    raw.name = in_.identifier("an entry name");
    entry_ = &raw;
    if (in_.accept("(")) parameters();
    while (in_.peek().kind == Tok::Dot) entry_directive();
    if (in_.accept(";")) return;  // declaration only
    in_.expect("{");
    scopes_ = RegisterScopes();
    open_scope(-1);
    body();
    module_.entries.push_back(std::move(raw));
  }

  void parameters() {
    u64 offset = 0;
    while (!in_.accept(")")) {
      if (!in_.accept_dot("param")) in_.fail("expected .param");
      Param param;
      u64 element = 0;
      while (in_.peek().kind == Tok::Dot) {
        std::string word = in_.take().text;
        if (word == "align") {
          u32 align = static_cast<u32>(in_.integer());
          if (!pointer_) param.align = align;
        } else if (word == "ptr") {
          pointer_ = true;
        } else if (Ty type = type_from_name(word); type != Ty::None) {
          element = static_cast<u64>(type_bytes(type));
        } else if (!pointer_ || !(word == "global" || word == "shared" || word == "const" || word == "local")) {
          in_.fail("unknown parameter attribute ." + word);
        }
      }
      pointer_ = false;
      param.name = in_.identifier("a parameter name");
      u64 count = 1;
      while (in_.accept("[")) {
        count *= in_.integer();
        in_.expect("]");
      }
      param.bytes = element * count;
      param.align = std::max<u32>(param.align, static_cast<u32>(element));
      offset = (offset + param.align - 1) / param.align * param.align;
      param.offset = offset;
      offset += param.bytes;
      entry_->params.push_back(param);
      in_.accept(",");
    }
  }

  void triple(u32* out) {
    out[0] = static_cast<u32>(in_.integer());
    out[1] = out[2] = 1;
    for (int i = 1; i < 3 && in_.accept(","); ++i) out[i] = static_cast<u32>(in_.integer());
  }

  void entry_directive() {
    std::string word = in_.take().text;
    if (word == "maxntid")
      triple(entry_->maxntid);
    else if (word == "reqntid")
      triple(entry_->reqntid);
    else if (word == "reqnctapercluster")
      triple(entry_->reqcluster);
    else if (word == "maxnreg")
      entry_->maxnreg = static_cast<u32>(in_.integer());
    else if (word == "minnctapersm")
      entry_->minnctapersm = static_cast<u32>(in_.integer());
    else if (word == "maxclusterrank")
      in_.integer();
    else if (word == "pragma")
      in_.skip_to_semicolon();
    else if (word != "explicitcluster" && word != "noreturn" && word != "blocksareclusters")
      in_.fail("unknown entry directive ." + word);
  }

  void open_scope(int parent) {
    int id = static_cast<int>(entry_->scope_parent.size());
    entry_->scope_parent.push_back(parent);
    scopes_.open(id);
  }

  void body() {
    for (;;) {
      if (in_.peek().kind == Tok::End) in_.fail("entry body is never closed");
      if (in_.accept("}")) {
        scopes_.close();
        if (scopes_.empty()) return;
      } else if (in_.accept("{")) {
        open_scope(scopes_.current());
      } else if (in_.peek().kind == Tok::Dot) {
        body_directive();
      } else if (in_.accept(";")) {
      } else {
        statement();
      }
    }
  }

  void body_directive() {
    std::string word = in_.peek().text;
    if (word == "loc" || word == "file") return in_.skip_line();
    if (word == "section") return in_.skip_braces();
    if (word == "pragma" || word == "callprototype") return in_.skip_to_semicolon();
    if (word == "reg") return in_.take(), registers();
    variable(&entry_->variables, false, scopes_.current());
  }

  void registers() {
    Ty type = type_from_name(in_.peek().text);
    if (in_.peek().kind != Tok::Dot || type == Ty::None)
      in_.fail("expected a register type (vector registers are unsupported)");
    in_.take();
    do {
      std::string name = in_.identifier("a register name");
      int base = static_cast<int>(entry_->regs.size());
      if (in_.accept("<")) {
        int count = static_cast<int>(in_.integer());
        in_.expect(">");
        for (int i = 0; i < count; ++i) entry_->regs.push_back({name + std::to_string(i), type});
        scopes_.declare_range(name, base, count);
      } else {
        entry_->regs.push_back({name, type});
        scopes_.declare(name, base);
      }
    } while (in_.accept(","));
    in_.expect(";");
  }

  // ---- statements
  void statement() {
    if (in_.peek().kind == Tok::Ident && in_.peek(1).kind == Tok::Punct && in_.peek(1).text == ":") {
      if (in_.peek(2).kind == Tok::Dot && in_.peek(2).text == "branchtargets") return target_list();
      entry_->labels.push_back({in_.take().text, scopes_.current(), static_cast<u32>(entry_->insts.size())});
      in_.take();
      return;
    }
    entry_->insts.push_back(parse_instruction(in_, scopes_));
  }

  void target_list() {
    TargetList list;
    list.name = in_.take().text, list.scope = scopes_.current();
    in_.take(), in_.take();
    do list.labels.push_back(in_.identifier("a label"));
    while (in_.accept(","));
    in_.expect(";");
    entry_->target_lists.push_back(std::move(list));
  }

  TokenCursor in_;
  RawModule module_;
  RawEntry* entry_ = nullptr;
  RegisterScopes scopes_;
  bool pointer_ = false;
};

}  // namespace

RawModule parse_ptx(const std::string& source) { return Parser(source).run(); }

}  // namespace ptxsim
