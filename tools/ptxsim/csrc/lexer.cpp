// SPDX-License-Identifier: Apache-2.0
// The tokenizer. Dot-words (".shared::cta") are one token so that modifiers need no second look.
#include "lexer.hpp"

#include <cctype>
#include <cstdlib>

#include "error.hpp"

namespace ptxsim {
namespace {

bool ident_start(char c) { return std::isalpha(static_cast<unsigned char>(c)) || c == '_' || c == '$' || c == '%'; }
bool ident_char(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '$'; }
bool digit(char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; }

class Lexer {
 public:
  explicit Lexer(const std::string& source) : source_(source) {}

  std::vector<Token> run() {
    std::vector<Token> tokens;
    tokens.reserve(source_.size() / 4);
    for (;;) {
      skip_blank();
      Token token = next();
      tokens.push_back(token);
      if (token.kind == Tok::End) return tokens;
    }
  }

 private:
  char at(size_t i) const { return i < source_.size() ? source_[i] : '\0'; }

  void skip_blank() {
    while (pos_ < source_.size()) {
      char c = source_[pos_];
      if (c == '\n') {
        ++line_, ++pos_;
      } else if (std::isspace(static_cast<unsigned char>(c)) || c == '\0') {
        ++pos_;
      } else if (c == '/' && at(pos_ + 1) == '/') {
        while (pos_ < source_.size() && source_[pos_] != '\n') ++pos_;
      } else if (c == '/' && at(pos_ + 1) == '*') {
        size_t close = source_.find("*/", pos_ + 2);
        if (close == std::string::npos) throw SimError("parse", "comment is never closed", line_);
        for (size_t i = pos_; i < close; ++i) line_ += source_[i] == '\n';
        pos_ = close + 2;
      } else {
        return;
      }
    }
  }

  Token make(Tok kind, size_t end) {
    Token token;
    token.kind = kind, token.line = line_, token.begin = pos_, token.end = end;
    token.text = source_.substr(pos_, end - pos_);
    pos_ = end;
    return token;
  }

  Token next() {
    if (pos_ >= source_.size()) return make(Tok::End, pos_);
    char c = source_[pos_];
    if (ident_start(c)) return identifier();
    if (c == '.' && ident_char(at(pos_ + 1))) return dot_word();
    if (digit(c)) return number();
    if (c == '"') {
      size_t close = source_.find('"', pos_ + 1);
      if (close == std::string::npos) throw SimError("parse", "string is never closed", line_);
      return make(Tok::String, close + 1);
    }
    return make(Tok::Punct, pos_ + 1);
  }

  Token identifier() {
    size_t end = pos_ + 1;
    while (ident_char(at(end))) ++end;
    return make(Tok::Ident, end);
  }

  Token dot_word() {
    size_t end = pos_ + 1;
    while (ident_char(at(end)) || (at(end) == ':' && at(end + 1) == ':')) end += at(end) == ':' ? 2 : 1;
    Token token = make(Tok::Dot, end);
    token.text.erase(0, 1);
    return token;
  }

  Token hex_float(int digits, Tok kind) {
    size_t end = pos_ + 2;
    while (std::isxdigit(static_cast<unsigned char>(at(end)))) ++end;
    if (end != pos_ + 2 + static_cast<size_t>(digits)) throw SimError("parse", "malformed float literal", line_);
    Token token = make(kind, end);
    token.bits = std::strtoull(token.text.c_str() + 2, nullptr, 16);
    return token;
  }

  Token number() {
    char c1 = at(pos_ + 1);
    if (source_[pos_] == '0' && (c1 == 'f' || c1 == 'F')) return hex_float(8, Tok::Float32);
    if (source_[pos_] == '0' && (c1 == 'd' || c1 == 'D')) return hex_float(16, Tok::Float64);
    int base = 10;
    size_t start = pos_, end = pos_;
    if (source_[pos_] == '0' && (c1 == 'x' || c1 == 'X'))
      base = 16, start = end = pos_ + 2;
    else if (source_[pos_] == '0' && (c1 == 'b' || c1 == 'B'))
      base = 2, start = end = pos_ + 2;
    while (std::isalnum(static_cast<unsigned char>(at(end)))) ++end;
    if (base == 10 && (at(end) == '.' || is_exponent(pos_, end))) return decimal_float();
    Token token = make(Tok::Int, end);
    std::string digits = source_.substr(start, end - start);
    if (!digits.empty() && (digits.back() == 'U' || digits.back() == 'u')) digits.pop_back();
    if (base == 10 && digits.size() > 1 && digits[0] == '0') base = 8;
    char* stop = nullptr;
    token.bits = std::strtoull(digits.c_str(), &stop, base);
    if (digits.empty() || *stop) throw SimError("parse", "malformed number '" + token.text + "'", line_);
    return token;
  }

  bool is_exponent(size_t begin, size_t end) const {
    for (size_t i = begin; i < end; ++i)
      if (source_[i] == 'e' || source_[i] == 'E') return true;
    return false;
  }

  Token decimal_float() {
    char* stop = nullptr;
    double value = std::strtod(source_.c_str() + pos_, &stop);
    Token token = make(Tok::Float64, static_cast<size_t>(stop - source_.c_str()));
    token.bits = bit_cast<u64>(value);
    return token;
  }

  const std::string& source_;
  size_t pos_ = 0;
  int line_ = 1;
};

}  // namespace

std::vector<Token> tokenize(const std::string& source) { return Lexer(source).run(); }

}  // namespace ptxsim
