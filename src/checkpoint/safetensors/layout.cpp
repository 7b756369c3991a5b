// Writes the header.
#include "base/json.h"
#include "base/text.h"
#include "checkpoint/safetensors/header.h"

#include <penstock/base/error.h>

#include <algorithm>

namespace penstock::checkpoint {
namespace {

void check_text(const std::string& text) {
  // json_quote replaces bytes that are not UTF-8 with U+FFFD, so two different names could become equal.
  const auto count = [](const std::string& in) {
    std::size_t found = 0;
    for (std::size_t at = in.find("\xef\xbf\xbd"); at != std::string::npos;
         at = in.find("\xef\xbf\xbd", at + 3))
      ++found;
    return found;
  };
  if (count(json_quote(text)) != count(text))
    throw UsageError("the name " + quote(text, 200) + " is not UTF-8");
}

}  // namespace

std::string layout_safetensors(std::vector<SafetensorsEntry>& entries, const SafetensorsMetadata& metadata) {
  std::sort(entries.begin(), entries.end(), [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
    const std::size_t order_a = safetensors_dtype_order(a.dtype), order_b = safetensors_dtype_order(b.dtype);
    return std::tie(order_a, a.name) < std::tie(order_b, b.name);
  });
  JsonWriter json;
  json.begin_object();
  if (!metadata.empty()) {
    json.key("__metadata__").begin_object();
    for (const auto& [key, value] : metadata) {
      check_text(key);
      check_text(value);
      json.field(key, value);
    }
    json.end_object();
  }
  std::uint64_t next = 0;
  for (SafetensorsEntry& entry : entries) {
    check_text(entry.name);
    if (entry.name == "__metadata__")
      throw UsageError("a tensor in a safetensors file cannot have the name __metadata__");
    if (safetensors_dtype_name(entry.dtype).empty()) {
      throw UsageError("tensor " + quote(entry.name, 200) +
                       ": the safetensors format does not support dtype " + c10::toString(entry.dtype));
    }
    const auto bytes = checked_nbytes(entry.shape, entry.dtype);
    if (!bytes || *bytes > (std::uint64_t{1} << 62) - next) {
      throw UsageError("tensor " + quote(entry.name, 200) + " is too large for a file");
    }
    entry.begin = next;
    entry.end = next += *bytes;
    json.key(entry.name)
        .begin_object()
        .field("dtype", safetensors_dtype_name(entry.dtype))
        .key("shape")
        .begin_array();
    for (const std::int64_t size : entry.shape) json.value(size);
    json.end_array()
        .key("data_offsets")
        .begin_array()
        .value(entry.begin)
        .value(entry.end)
        .end_array()
        .end_object();
  }
  json.end_object();
  std::string text = json.text();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  if (text.size() > kMaxSafetensorsHeader) {
    throw UsageError(
        "a header of " + format_bytes(text.size()) + " is longer than the safetensors format allows", {},
        "write the tensors to several files");
  }
  std::string prefix(kSafetensorsPrefix, '\0');
  for (std::size_t i = 0; i < prefix.size(); ++i)
    prefix[i] = static_cast<char>(text.size() >> (8 * i) & 0xff);
  return prefix + text;
}

}  // namespace penstock::checkpoint
