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
      break;
  }
  return "error";
}

std::string to_string(const Diagnostic& diagnostic) {
  std::string text(to_string(diagnostic.severity));
  text += ": ";
  if (!diagnostic.where.empty()) text += diagnostic.where + ": ";
  return text + diagnostic.message;
}

bool has_errors(const Diagnostics& diagnostics) {
  return std::any_of(diagnostics.begin(), diagnostics.end(),
                     [](const Diagnostic& d) { return d.severity == Severity::Error; });
}

std::string to_string(const Diagnostics& diagnostics) {
  std::string text;
  for (const Diagnostic& diagnostic : diagnostics) text += to_string(diagnostic) + "\n";
  return text;
}

}  // namespace penstock
