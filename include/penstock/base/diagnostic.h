// Diagnostics: a validator reports all findings at once instead of throwing at the first one.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace penstock {

//! How serious a finding is; only errors make the checked object invalid.
enum class Severity { Note, Warning, Error };

std::string_view to_string(Severity severity);

//! One finding. `where` is the location in the user's terms, such as `row 2, column 5` or `rank 1, step 4`.
struct Diagnostic {
  Severity severity = Severity::Error;
  std::string where;
  std::string message;

  friend bool operator==(const Diagnostic&, const Diagnostic&) = default;
};

//! `error: row 2, column 5: message`
std::string to_string(const Diagnostic& diagnostic);

using Diagnostics = std::vector<Diagnostic>;

//! Whether any finding is an error.
bool has_errors(const Diagnostics& diagnostics);

//! One line per finding.
std::string to_string(const Diagnostics& diagnostics);

}  // namespace penstock
