// Formats numbers for the output of renderers: short, and precise enough for a drawing.
#pragma once

#include "base/number_text.h"

#include <array>
#include <charconv>
#include <cstdint>
#include <string>

namespace penstock::view {

//! Appends the number with at most `digits` significant digits, in the shortest notation.
inline void append_number(std::string& text, double number, int digits = 9) {
  append_rounded(text, number, digits);
}

inline void append_number(std::string& text, std::int64_t number) {
  std::array<char, 24> buffer{};
  char* const begin = buffer.data();
  text.append(begin, std::to_chars(begin, begin + buffer.size(), number).ptr);
}

}  // namespace penstock::view
