// Decimal text of floating-point numbers, independent of the locale.
#pragma once

#include <string>

namespace penstock {

//! Appends the shortest text that reads back as the same number.
void append_shortest(std::string& text, double number);

//! The shortest text in the notation of `%g` that reads back as the same number, or `nan`. Integers below
//! 1e15 have no exponent.
std::string decimal_text(double number);

//! Appends the number with at most `digits` significant digits, in the notation of `%g`.
void append_rounded(std::string& text, double number, int digits);

//! The same functions without `std::to_chars` for floating-point numbers, which the C++ library of Emscripten
//! lacks. `append_shortest_printf` may write one digit more than necessary.
void append_shortest_printf(std::string& text, double number);
void append_rounded_printf(std::string& text, double number, int digits);

}  // namespace penstock
