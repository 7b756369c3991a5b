// Splits text into tokens: strings, punctuation, and runs of other characters.
#include "graph/text/lexer.h"

#include "base/text.h"

#include <penstock/base/error.h>

#include <algorithm>
#include <charconv>

namespace penstock::graph {
namespace {

bool is_space(char c) {
  return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

bool is_mark(char c) {
  return std::string_view("()[]{},=:\"").find(c) != std::string_view::npos;
}

template <class Number>
bool parse_all(std::string_view token, Number& number) {
  const auto [end, error] = std::from_chars(token.data(), token.data() + token.size(), number);
  return error == std::errc() && end == token.data() + token.size();
}

}  // namespace

void Lexer::advance() {
  while (at_ < text_.size() && is_space(text_[at_])) ++at_;
  const std::size_t begin = at_;
  if (at_ < text_.size() && text_[at_] == '"') {
    for (++at_; at_ < text_.size() && text_[at_] != '"'; ++at_) {
      if (text_[at_] == '\\') ++at_;
    }
    at_ = std::min(at_ + 1, text_.size());
  } else if (at_ < text_.size() && is_mark(text_[at_])) {
    ++at_;
  } else {
    // `::` is part of an operator's name.
    while (at_ < text_.size() && !is_space(text_[at_])) {
      if (text_.substr(at_, 2) == "::") {
        at_ += 2;
      } else if (is_mark(text_[at_])) {
        break;
      } else {
        ++at_;
      }
    }
  }
  token_ = text_.substr(begin, at_ - begin);
}

std::string_view Lexer::take() {
  if (token_.empty()) fail("unexpected end of text");
  const std::string_view token = token_;
  advance();
  return token;
}

bool Lexer::accept(std::string_view token) {
  if (token_ != token) return false;
  advance();
  return true;
}

void Lexer::expect(std::string_view token) {
  if (!accept(token)) fail("expected " + quote(token) + ", not " + quote(token_));
}

void Lexer::expect_end() {
  if (!token_.empty()) fail("unexpected text after the end of the graph");
}

std::string Lexer::string() {
  if (token_.size() < 2 || token_.front() != '"' || token_.back() != '"') fail("expected a quoted string");
  const std::string_view inside = token_.substr(1, token_.size() - 2);
  std::string result;
  for (std::size_t i = 0; i < inside.size(); ++i) {
    if (inside[i] != '\\') {
      result += inside[i];
      continue;
    }
    if (++i >= inside.size()) fail("the string ends with a backslash");
    switch (inside[i]) {
      case 'n':
        result += '\n';
        break;
      case 't':
        result += '\t';
        break;
      case 'r':
        result += '\r';
        break;
      case 'u': {
        unsigned code = 0;
        const std::string_view digits = inside.substr(std::min(i + 1, inside.size()), 4);
        const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), code, 16);
        if (error != std::errc() || digits.size() != 4 || code > 0x7f)
          fail("expected an escape from \\u0000 to \\u007f");
        result += static_cast<char>(code);
        i += 4;
        break;
      }
      default:
        result += inside[i];
    }
  }
  advance();
  return result;
}

std::string Lexer::value_name() {
  if (token_.size() < 2 || token_.front() != '%') fail("expected a value like %x, not " + quote(token_));
  return std::string(take().substr(1));
}

std::int64_t Lexer::integer() {
  std::int64_t number = 0;
  if (!parse_all(token_, number)) fail("expected an integer, not " + quote(token_));
  advance();
  return number;
}

double Lexer::real() {
  double number = 0;
  if (!parse_all(token_, number)) fail("expected a number, not " + quote(token_));
  advance();
  return number;
}

c10::IValue Lexer::number() {
  std::int64_t int_number = 0;
  if (parse_all(token_, int_number)) {
    advance();
    return int_number;
  }
  return real();
}

void Lexer::fail(const std::string& message) const {
  const std::size_t begin = at_ - token_.size();
  const std::string_view before = text_.substr(0, begin);
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  const std::size_t start = before.rfind('\n');
  const std::size_t column = begin - (start == std::string_view::npos ? 0 : start + 1) + 1;
  throw ParseError(str_cat("line ", line, ", column ", column, ": ", message));
}

}  // namespace penstock::graph
