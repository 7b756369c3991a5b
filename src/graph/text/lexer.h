// Splits graph text into words and tracks their positions for errors.
#pragma once

#include <ATen/core/ivalue.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace penstock::graph {

class Lexer {
 public:
  explicit Lexer(std::string_view text) : text_(text) { advance(); }

  //! The next word; empty at the end.
  std::string_view peek() const { return word_; }
  std::string_view take();
  bool accept(std::string_view word);
  void expect(std::string_view word);
  void expect_end();

  std::string string();      //!< the content of a quoted string
  std::string value_name();  //!< the `name` of `%name`
  std::int64_t integer();
  double real();
  c10::IValue number();  //!< a double if it has a point or exponent or is not finite, else an integer

  //! Throws ParseError with the position of the next word.
  [[noreturn]] void fail(const std::string& message) const;

 private:
  void advance();

  std::string_view text_;
  std::string_view word_;
  std::size_t at_ = 0;  //!< end of `word_`
};

}  // namespace penstock::graph
