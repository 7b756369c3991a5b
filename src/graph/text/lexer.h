// Splits graph text into tokens and tracks their positions for errors.
#pragma once

#include <ATen/core/ivalue.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace penstock::graph {

class Lexer {
 public:
  explicit Lexer(std::string_view text) : text_(text) { advance(); }

  //! The next token; empty at the end.
  std::string_view peek() const { return token_; }
  std::string_view take();
  bool accept(std::string_view token);
  void expect(std::string_view token);
  void expect_end();

  std::string string();      //!< the content of a quoted string
  std::string value_name();  //!< the `name` of `%name`
  std::int64_t integer();
  double real();
  c10::IValue number();  //!< a double if it has a point or exponent or is not finite, else an integer

  //! Throws ParseError with the position of the next token.
  [[noreturn]] void fail(const std::string& message) const;

 private:
  void advance();

  std::string_view text_;
  std::string_view token_;
  std::size_t at_ = 0;  //!< end of `token_`
};

}  // namespace penstock::graph
