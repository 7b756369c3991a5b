// Encodes the error of a rank as one line.
#include "train/rank/rank_error.h"

#include "base/text.h"

#include <algorithm>
#include <cstdlib>
#include <vector>

namespace penstock::tool {
namespace {

constexpr char kErrorMark = '\x1d', kField = '\x1f', kLineBreak = '\x1e';

}  // namespace

std::string ToolError::text() const {
  return "penstock: error: " + message + (context.empty() ? "" : " (" + context + ")") + "\n" +
         (hint.empty() ? "" : "hint: " + hint + "\n");
}

bool errors_are_collected() {
  return std::getenv(kErrorLinesVariable) != nullptr;
}

std::string to_line(const ToolError& error) {
  std::string line =
      str_cat(kErrorMark, error.message, kField, error.context, kField, error.hint, kField, error.code);
  std::replace(line.begin(), line.end(), '\n', kLineBreak);
  return line;
}

std::optional<ToolError> read_error_line(std::string_view line) {
  if (line.empty() || line.front() != kErrorMark) return std::nullopt;
  std::vector<std::string> fields(1);
  for (const char c : line.substr(1)) {
    if (c == kField) {
      fields.emplace_back();
    } else {
      fields.back() += c == kLineBreak ? '\n' : c;
    }
  }
  if (fields.size() != 4) return std::nullopt;
  return ToolError{fields[0], fields[1], fields[2], std::atoi(fields[3].c_str())};
}

}  // namespace penstock::tool
