// Diagnostics: what a validator found, all of it at once, rather than the first thing as an exception.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace penstock {

enum class Severity { Note, Warning, Error };

std::string_view severity_name(Severity severity);

//! One finding. `where` is the place as its user counts it, for example `row 2, column 5` or `rank 1, step 4`.
struct Diagnostic {
  Severity severity = Severity::Error;
  std::string where;
  std::string message;

  //! `error: row 2, column 5: message`
  std::string text() const;

  friend bool operator==(const Diagnostic&, const Diagnostic&) = default;
};

using Diagnostics = std::vector<Diagnostic>;

//! Whether any finding is an error.
bool has_errors(const Diagnostics& diagnostics);

//! One line for each finding.
std::string to_text(const Diagnostics& diagnostics);

}  // namespace penstock
