// Formats times and bytes.
#include "view/quantity_text.h"

#include "base/text.h"

namespace penstock::view {

std::string format_time(double time, TimeUnit unit) {
  if (unit == TimeUnit::Seconds) return format_seconds(time);
  return formatted("%.6g", time);
}

std::string format_memory(std::uint64_t bytes, TimeUnit unit) {
  if (unit == TimeUnit::Seconds) return format_bytes(bytes);
  return counted(static_cast<std::int64_t>(bytes), "activation");
}

}  // namespace penstock::view
