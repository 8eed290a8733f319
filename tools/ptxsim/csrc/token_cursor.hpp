// SPDX-License-Identifier: Apache-2.0
// A place in the tokens of one source: looking ahead, taking, skipping, and the parse error that names the line.
// Not responsible for what a directive or an instruction means.
#pragma once

#include <algorithm>
#include <cctype>
#include <string>
#include <vector>

#include "error.hpp"
#include "lexer.hpp"

namespace ptxsim {

class TokenCursor {
 public:
  explicit TokenCursor(const std::string& source) : source_(source), tokens_(tokenize(source)) {}

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

  // The source between two offsets on one line, for messages.
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

 private:
  const std::string& source_;
  std::vector<Token> tokens_;
  size_t pos_ = 0;
};

}  // namespace ptxsim
