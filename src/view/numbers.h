// Formats numbers for the output of renderers: short, and precise enough for a drawing.
#pragma once

#include <charconv>
#include <string>

namespace penstock::view {

//! Appends the number with at most `digits` significant digits, in the shortest notation.
inline void append_number(std::string& text, double number, int digits = 9) {
  char buffer[40];
  const auto end =
      std::to_chars(buffer, buffer + sizeof buffer, number, std::chars_format::general, digits).ptr;
  text.append(buffer, end);
}

inline void append_number(std::string& text, std::int64_t number) {
  char buffer[24];
  text.append(buffer, std::to_chars(buffer, buffer + sizeof buffer, number).ptr);
}

}  // namespace penstock::view
