// Names of the send modes.
#include "base/text.h"

#include <penstock/base/error.h>
#include <penstock/schedule/send_mode.h>

#include <string>
#include <vector>

namespace penstock::schedule {

std::string_view to_string(SendMode mode) {
  switch (mode) {
    case SendMode::Buffered:
      return "buffered";
    case SendMode::Ordered:
      return "ordered";
    case SendMode::Blocking:
      return "blocking";
  }
  return "";
}

SendMode parse_send_mode(std::string_view name) {
  std::vector<std::string> names;
  for (const SendMode mode : kSendModes) {
    if (to_string(mode) == name) return mode;
    names.emplace_back(to_string(mode));
  }
  throw UsageError("unknown send mode " + quote(name), {}, "valid send modes are " + join(names, ", "));
}

}  // namespace penstock::schedule
