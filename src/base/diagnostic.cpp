// Formats diagnostics.
#include <penstock/base/diagnostic.h>

#include <algorithm>

namespace penstock {

std::string_view to_string(Severity severity) {
  switch (severity) {
    case Severity::Note:
      return "note";
    case Severity::Warning:
      return "warning";
    case Severity::Error:
      return "error";
  }
  return "error";
}

std::string Diagnostic::text() const {
  std::string text(to_string(severity));
  text += ": ";
  if (!where.empty()) text += where + ": ";
  return text + message;
}

bool has_errors(const Diagnostics& diagnostics) {
  return std::any_of(diagnostics.begin(), diagnostics.end(),
                     [](const Diagnostic& d) { return d.severity == Severity::Error; });
}

std::string to_string(const Diagnostics& diagnostics) {
  std::string text;
  for (const Diagnostic& diagnostic : diagnostics) text += diagnostic.text() + "\n";
  return text;
}

}  // namespace penstock
