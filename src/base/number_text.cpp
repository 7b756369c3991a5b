// Floating-point numbers as text, with std::to_chars where the C++ library has it.
#include "base/number_text.h"

#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>

namespace penstock {
namespace {

constexpr int kSufficientDigits = 17;  //!< enough for every double
constexpr int kSafeDigits = 15;        //!< a decimal number of this length survives the way through a double

}  // namespace

void append_rounded_printf(std::string& text, double number, int digits) {
  std::array<char, 40> buffer{};
  const int length = std::snprintf(buffer.data(), buffer.size(), "%.*g", digits, number);
  text.append(buffer.data(), static_cast<std::size_t>(length));
}

void append_shortest_printf(std::string& text, double number) {
  const std::size_t before = text.size();
  for (int digits = kSafeDigits;; ++digits) {
    append_rounded_printf(text, number, digits);
    if (digits == kSufficientDigits || std::strtod(text.c_str() + before, nullptr) == number) return;
    text.resize(before);
  }
}

std::string decimal_text(double number) {
  if (std::isnan(number)) return "nan";  // equals nothing that it reads back as
  std::string text;
  const bool plain = std::abs(number) < 1e15 && number == std::floor(number);
  for (int digits = plain ? kSafeDigits : 1; digits <= kSufficientDigits; ++digits) {
    text.clear();
    append_rounded(text, number, digits);
    if (std::strtod(text.c_str(), nullptr) == number) return text;  // works for subnormal numbers too
  }
  return "0";
}

#ifdef __cpp_lib_to_chars

void append_shortest(std::string& text, double number) {
  std::array<char, 40> buffer{};
  text.append(buffer.data(), std::to_chars(buffer.data(), buffer.data() + buffer.size(), number).ptr);
}

void append_rounded(std::string& text, double number, int digits) {
  std::array<char, 40> buffer{};
  char* const end = buffer.data() + buffer.size();
  text.append(buffer.data(),
              std::to_chars(buffer.data(), end, number, std::chars_format::general, digits).ptr);
}

#else

void append_shortest(std::string& text, double number) {
  append_shortest_printf(text, number);
}

void append_rounded(std::string& text, double number, int digits) {
  append_rounded_printf(text, number, digits);
}

#endif

}  // namespace penstock
