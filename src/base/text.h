// Helpers for human-readable text: joining, quoting, numbers with units, "did you mean" suggestions.
#pragma once

#include <chrono>
#include <concepts>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace penstock {

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

//! The sizes or strides of a tensor: `[2, 3]`.
std::string format_shape(std::span<const std::int64_t> sizes);

//! Returns the candidate with the smallest case-insensitive edit distance to `word`; empty if none is close.
std::string nearest_name(std::string_view word, const std::vector<std::string>& candidates);

//! Returns `did you mean X?` for the nearest candidate, or for one that is a prefix of `word` or vice versa.
//! Returns `otherwise` if there is none.
std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates,
                         const std::string& otherwise = "");

}  // namespace penstock
