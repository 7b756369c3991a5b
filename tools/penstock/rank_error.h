// An error as the tool prints it, and how a rank that the tool started hands its own to the command: as one
// marked line on stderr.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace penstock::tool {

struct ToolError {
  std::string message, context, hint;
  int code = 1;  //!< the exit code

  //! `penstock: error: MESSAGE (CONTEXT)` and `hint: HINT`, each with its line end.
  std::string text() const;
};

//! Set for ranks whose command takes their errors.
inline constexpr const char* kTakenVariable = "PENSTOCK_ERROR_LINES";
bool errors_are_taken();

std::string to_line(const ToolError& error);
//! Nothing if the line is not of `to_line`.
std::optional<ToolError> read_error_line(std::string_view line);

}  // namespace penstock::tool
