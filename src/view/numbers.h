// Formats numbers for the output of renderers: short, and precise enough for a drawing.
#pragma once

#include <array>
#include <charconv>
#include <cstdint>
#include <string>

namespace penstock::view {

//! Appends the number with at most `digits` significant digits, in the shortest notation.
inline void append_number(std::string& text, double number, int digits = 9) {
  std::array<char, 40> buffer{};
  char* const begin = buffer.data();
  text.append(begin,
              std::to_chars(begin, begin + buffer.size(), number, std::chars_format::general, digits).ptr);
}

inline void append_number(std::string& text, std::int64_t number) {
  std::array<char, 24> buffer{};
  char* const begin = buffer.data();
  text.append(begin, std::to_chars(begin, begin + buffer.size(), number).ptr);
}

}  // namespace penstock::view
