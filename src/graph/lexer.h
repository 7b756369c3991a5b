// The words of a graph's text, with the position of each for errors.
#pragma once

#include <ATen/core/ivalue.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace penstock {

class Lexer {
 public:
  explicit Lexer(std::string_view text) : text_(text) { advance(); }

  //! The next word; empty at the end.
  std::string_view peek() const { return word_; }
  std::string_view take();
  bool accept(std::string_view word);
  void expect(std::string_view word);
  void expect_end();

  std::string string();      //!< a quoted string's content
  std::string value_name();  //!< of `%name`
  std::int64_t integer();
  double real();
  c10::IValue number();  //!< an integer, or a double where it has a point, an exponent or is not finite

  //! ParseError at the place of the next word.
  [[noreturn]] void fail(const std::string& message) const;

 private:
  void advance();

  std::string_view text_;
  std::string_view word_;
  std::size_t at_ = 0;  //!< end of `word_`
};

}  // namespace penstock
