// Small helpers for the text that people read: joining, quoting, numbers with units, "did you mean".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace penstock {

std::string join(const std::vector<std::string>& parts, std::string_view separator);

//! Lower case, ASCII only.
std::string to_lower(std::string_view text);

//! The text in single quotes, control and non-ASCII bytes as \xNN, cut to `limit` characters with "…".
std::string quote(std::string_view text, std::size_t limit = 40);

//! `1.5 GiB`, `640 B`.
std::string bytes_text(std::uint64_t bytes);

//! `1.25 s`, `3.1 ms`, `12 us`.
std::string seconds_text(double seconds);

//! The candidate that is closest to `word` by edit distance (case does not count), or empty if none is near.
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace penstock
