// Errors in the tool. A rank passes its error to the command that started it as one marked line on stderr.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace penstock::tool {

struct ToolError {
  std::string message, context, hint;
  int code = 1;  //!< the exit code

  //! Returns `penstock: error: MESSAGE (CONTEXT)` and `hint: HINT`, each with a newline.
  std::string text() const;
};

//! Environment variable of ranks whose command reads their error lines.
inline constexpr const char* kErrorLinesVariable = "PENSTOCK_ERROR_LINES";
bool errors_are_collected();

std::string to_line(const ToolError& error);
//! Parses a line written by `to_line`. Returns nullopt for any other line.
std::optional<ToolError> read_error_line(std::string_view line);

}  // namespace penstock::tool
