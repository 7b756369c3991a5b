// Parses quantities with units.
#include "cli/units.h"

#include "base/text.h"

#include <penstock/base/error.h>

#include <array>
#include <charconv>
#include <cmath>
#include <string_view>
#include <utility>

namespace penstock::tool {

double parse_bytes(const std::string& text) {
  constexpr std::array<std::pair<std::string_view, double>, 10> units = {{{"", 1.0},
                                                                          {"b", 1.0},
                                                                          {"kb", 1e3},
                                                                          {"mb", 1e6},
                                                                          {"gb", 1e9},
                                                                          {"tb", 1e12},
                                                                          {"kib", 1024.0},
                                                                          {"mib", 1048576.0},
                                                                          {"gib", 1073741824.0},
                                                                          {"tib", 1099511627776.0}}};
  double number = 0;
  const char* last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, number);
  if (error == std::errc() && number >= 0 && std::isfinite(number)) {
    std::string unit = to_lower(std::string_view(end, static_cast<std::size_t>(last - end)));
    if (!unit.empty() && unit.front() == ' ') unit.erase(0, 1);
    for (const auto& [name, factor] : units) {
      if (unit == name && number * factor <= 9e18) return number * factor;  // fits in 63 bits
    }
  }
  throw UsageError(quote(text) + " is not a valid number of bytes", {}, "for example 16GiB, 640MB or 4096");
}

}  // namespace penstock::tool
