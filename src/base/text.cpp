// Text helpers.
#include "base/text.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <numeric>

namespace penstock {
namespace {

std::string number(double value, const char* unit) {
  const int digits = value >= 100 ? 0 : value >= 10 ? 1 : 2;
  return formatted("%.*f %s", digits, value, unit);
}

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t above = row[j];
      row[j] = std::min({above + 1, row[j - 1] + 1, diagonal + (a[i - 1] == b[j - 1] ? 0 : 1)});
      diagonal = above;
    }
  }
  return row.back();
}

}  // namespace

std::string formatted(const char* pattern, ...) {
  std::va_list arguments;
  va_start(arguments, pattern);
  std::va_list again;
  va_copy(again, arguments);
  const int length = std::vsnprintf(nullptr, 0, pattern, arguments);
  va_end(arguments);
  std::string text(static_cast<std::size_t>(std::max(length, 0)), '\0');
  std::vsnprintf(text.data(), text.size() + 1, pattern, again);
  va_end(again);
  return text;
}

std::string join(const std::vector<std::string>& parts, std::string_view separator) {
  std::string text;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (i > 0) text += separator;
    text += parts[i];
  }
  return text;
}

std::string to_lower(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return lower;
}

std::string quote(std::string_view text, std::size_t limit) {
  std::string quoted = "'";
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (i == limit) return quoted + "…'";
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte >= 0x20 && byte < 0x7f) {
      quoted += text[i];
    } else {
      quoted += formatted("\\x%02x", byte);
    }
  }
  return quoted + "'";
}

std::string format_bytes(std::uint64_t bytes) {
  constexpr std::array<const char*, 5> units = {"B", "KiB", "MiB", "GiB", "TiB"};
  if (bytes < 1024) return str_cat(bytes, " B");
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1024 && unit + 1 < units.size()) {
    value /= 1024;
    ++unit;
  }
  return number(value, units[unit]);
}

std::string format_seconds(double seconds) {
  const double size = std::abs(seconds);
  if (size >= 1) return number(seconds, "s");
  if (size >= 1e-3) return number(seconds * 1e3, "ms");
  return number(seconds * 1e6, "us");
}

std::string format_share(double share) {
  return formatted("%.1f%%", 100 * share);
}

std::string plural(std::string_view noun) {
  return std::string(noun) + (noun.ends_with("ch") ? "es" : "s");
}

std::string counted(std::int64_t count, std::string_view noun) {
  return str_cat(count, " ", (count == 1 ? std::string(noun) : plural(noun)));
}

std::string format_shape(std::span<const std::int64_t> sizes) {
  return "[" + join(std::vector<std::int64_t>(sizes.begin(), sizes.end()), ", ") + "]";
}

std::string nearest_name(std::string_view word, const std::vector<std::string>& candidates) {
  const std::string lower = to_lower(word);
  std::string best;
  std::size_t best_distance = std::max<std::size_t>(2, word.size() / 3) + 1;
  for (const std::string& candidate : candidates) {
    const std::size_t distance = edit_distance(lower, to_lower(candidate));
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best;
}

std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates,
                         const std::string& otherwise, const std::string& prefix) {
  std::string near = nearest_name(word, candidates);
  if (near.empty() && !word.empty()) {
    // `--batch-size` for `--batch`: the longest candidate with a common prefix, of at least four characters.
    for (const std::string& candidate : candidates) {
      const bool part = word.starts_with(candidate) || candidate.starts_with(word);
      if (part && candidate.size() >= 4 && candidate.size() > near.size()) near = candidate;
    }
  }
  return near.empty() ? otherwise : "did you mean " + prefix + near + "?";
}

}  // namespace penstock
