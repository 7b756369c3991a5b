// Helpers for human-readable text: joining, quoting, numbers with units, "did you mean" suggestions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace penstock {

std::string join(const std::vector<std::string>& parts, std::string_view separator);

//! Converts ASCII letters to lower case.
std::string to_lower(std::string_view text);

//! Returns the text in single quotes, with control and non-ASCII bytes as \xNN, truncated to `limit`
//! characters with "…".
std::string quote(std::string_view text, std::size_t limit = 40);

//! `1.5 GiB`, `640 B`.
std::string format_bytes(std::uint64_t bytes);

//! `1.25 s`, `3.1 ms`, `12 us`.
std::string format_seconds(double seconds);

//! Returns the candidate with the smallest case-insensitive edit distance to `word`; empty if none is close.
std::string nearest_name(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace penstock
