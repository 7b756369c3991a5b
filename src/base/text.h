// Helpers for human-readable text: messages, joining, quoting, numbers with units, "did you mean"
// suggestions.
#pragma once

#include <algorithm>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace penstock {

namespace detail {

template <class Type>
concept Integer = std::integral<Type> && !std::same_as<Type, bool> && !std::same_as<Type, char>;

inline void append(std::string& text, std::string_view part) {
  text += part;
}
//! A template, so that other numbers, such as a double, do not convert to a character.
template <std::same_as<char> Character>
void append(std::string& text, Character part) {
  text += part;
}
template <Integer Number>
void append(std::string& text, Number number) {
  text += std::to_string(number);
}

}  // namespace detail

//! Concatenates strings, characters and integers: `str_cat("rank ", 2, " of ", 4)`. Messages are built with
//! it. Other types are converted by `to_string` or one of the `format_` functions first.
template <typename... Parts>
[[nodiscard]] std::string str_cat(const Parts&... parts) {
  std::string text;
  (detail::append(text, parts), ...);
  return text;
}

std::string join(const std::vector<std::string>& parts, std::string_view separator);

//! Joins the decimal digits of integers: `0, 2, 5`.
template <std::integral Number>
std::string join(const std::vector<Number>& numbers, std::string_view separator) {
  std::string text;
  for (const Number number : numbers) {
    if (!text.empty()) text += separator;
    text += std::to_string(number);
  }
  return text;
}

//! Converts ASCII letters to lower case.
std::string to_lower(std::string_view text);

//! Returns the text in single quotes, with control and non-ASCII bytes as `\xNN`, truncated to `limit`
//! characters with "…".
std::string quote(std::string_view text, std::size_t limit = 40);

//! `1.5 GiB`, `640 B`.
std::string format_bytes(std::uint64_t bytes);

//! `1.25 s`, `3.1 ms`, `12 us`.
std::string format_seconds(double seconds);
inline std::string format_seconds(std::chrono::duration<double> time) {
  return format_seconds(time.count());
}
//! A fraction as a percentage: `27.3%`.
std::string format_share(double share);

//! Formats like printf.
[[gnu::format(printf, 1, 2)]] std::string formatted(const char* pattern, ...);

//! The plural of an English noun: `stages`, `microbatches`.
std::string plural(std::string_view noun);
//! `1 stage`, `2 stages`.
std::string counted(std::int64_t count, std::string_view noun);

//! `rank 2`, `ranks 0, 2, 5`; with a limit, `ranks 0, 2 and 4 more`.
template <std::integral Number>
std::string numbered(std::string_view noun, const std::vector<Number>& numbers,
                     std::size_t limit = std::numeric_limits<std::size_t>::max()) {
  const std::vector<Number> shown(
      numbers.begin(), numbers.begin() + static_cast<std::ptrdiff_t>(std::min(limit, numbers.size())));
  std::string text = (numbers.size() == 1 ? std::string(noun) : plural(noun)) + " " + join(shown, ", ");
  if (shown.size() == numbers.size()) return text;
  return str_cat(text, " and ", numbers.size() - shown.size(), " more");
}

//! The sizes or strides of a tensor: `[2, 3]`.
std::string format_shape(std::span<const std::int64_t> sizes);

//! Returns the candidate with the smallest case-insensitive edit distance to `word`; empty if none is close.
std::string nearest_name(std::string_view word, const std::vector<std::string>& candidates);

//! Returns `did you mean X?` for the nearest candidate, or for one that is a prefix of `word` or vice versa.
//! Returns `otherwise` if there is none. `prefix` is inserted before the candidate.
std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates,
                         const std::string& otherwise = "", const std::string& prefix = "");

}  // namespace penstock
