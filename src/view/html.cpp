// The HTML page: layout, style and script come from page/; the data is embedded as compact JSON.
#include "base/json.h"
#include "view/numbers.h"
#include "view/page_parts.h"
#include "view/palette.h"

#include <penstock/view/render.h>

#include <algorithm>

namespace penstock::view {
namespace {

constexpr std::size_t most_samples = 20'000;  //!< memory samples per rank; more would not be visible

void append_row(std::string& text, const std::vector<ActionBox>& row) {
  text += '[';
  for (const ActionBox& box : row) {
    if (text.back() != '[') text += ',';
    append_number(text, static_cast<std::int64_t>(box.action.kind()));
    text += ',';
    append_number(text, static_cast<std::int64_t>(box.action.stage().value));
    text += ',';
    append_number(text,
                  static_cast<std::int64_t>(has_microbatch(box.action) ? box.action.microbatch().value : -1));
    text += ',';
    append_number(text, box.start);
    text += ',';
    append_number(text, box.end - box.start, 6);
    text += ',';
    append_number(
        text, static_cast<std::int64_t>(static_cast<int>(box.part) + (box.critical ? 4 : 0) + 8 * box.lane));
  }
  text += ']';
}

void append_rows(std::string& text, const std::vector<std::vector<ActionBox>>& rows) {
  text += '[';
  for (std::size_t r = 0; r < rows.size(); ++r) {
    if (r > 0) text += ',';
    append_row(text, rows[r]);
  }
  text += ']';
}

//! Appends the memory curve, downsampled to at most `most_samples`. Keeps the maximum of each group.
void append_memory(std::string& text, const std::vector<schedule::MemorySample>& samples) {
  const std::size_t stride = samples.size() / most_samples + 1;
  text += '[';
  for (std::size_t i = 0; i < samples.size(); i += stride) {
    const auto last = std::min(i + stride, samples.size());
    const auto most = std::max_element(samples.begin() + static_cast<std::ptrdiff_t>(i),
                                       samples.begin() + static_cast<std::ptrdiff_t>(last),
                                       [](const auto& a, const auto& b) { return a.bytes < b.bytes; });
    if (text.back() != '[') text += ',';
    append_number(text, most->time);
    text += ',';
    append_number(text, static_cast<std::int64_t>(most->bytes));
  }
  text += ']';
}

std::string data_of(const Drawing& drawing) {
  std::string text = "{\"ranks\":" + std::to_string(drawing.ranks());
  text += std::string(",\"seconds\":") + (drawing.seconds ? "true" : "false") + ",\"kinds\":[";
  for (const schedule::ActionKind kind : all_kinds) {
    const KindLook& look = look_of(kind);
    if (text.back() != '[') text += ',';
    text += "{\"name\":" + json_quote(to_string(kind)) + ",\"colour\":" + json_quote(look.colour) +
            ",\"meaning\":" + json_quote(look.meaning) + "}";
  }
  text += "],\"chunks\":[";
  for (const int chunk : drawing.chunk_of_stage) {
    if (text.back() != '[') text += ',';
    text += std::to_string(chunk);
  }
  std::uint64_t peak = 0;
  for (const Panel& panel : drawing.panels) {
    for (const auto& rank : panel.memory) {
      for (const schedule::MemorySample& sample : rank) peak = std::max(peak, sample.bytes);
    }
  }
  text += "],\"memoryPeak\":" + std::to_string(peak) + ",\"panels\":[";
  for (const Panel& panel : drawing.panels) {
    if (text.back() != '[') text += ',';
    text += "{\"name\":" + json_quote(panel.name) + ",\"end\":";
    append_number(text, panel.end);
    text += ",\"summary\":[";
    for (const auto& [name, value] : panel.summary) {
      if (text.back() != '[') text += ',';
      text += "[" + json_quote(name) + "," + json_quote(value) + "]";
    }
    text += "],\"compute\":";
    append_rows(text, panel.compute);
    text += ",\"communication\":";
    append_rows(text, panel.communication);
    text += ",\"memory\":[";
    if (peak > 0) {
      for (std::size_t r = 0; r < panel.memory.size(); ++r) {
        if (r > 0) text += ',';
        append_memory(text, panel.memory[r]);
      }
    }
    text += "]}";
  }
  text += "]}";
  // `</script>` in a name must not close the element.
  for (std::size_t at = 0; (at = text.find("</", at)) != std::string::npos; at += 3)
    text.replace(at, 2, "<\\/");
  return text;
}

std::string escape(const std::string& text) {
  std::string result;
  for (const char c : text) {
    switch (c) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '"':
        result += "&quot;";
        break;
      default:
        result += c;
    }
  }
  return result;
}

}  // namespace

std::string to_html(const Drawing& drawing) {
  const std::string_view frame = page_html;
  std::string text;
  for (std::size_t at = 0; at < frame.size();) {
    const std::size_t open = frame.find("{{", at);
    if (open == std::string_view::npos) {
      text += frame.substr(at);
      break;
    }
    const std::size_t close = frame.find("}}", open);
    text += frame.substr(at, open - at);
    const std::string_view name = frame.substr(open + 2, close - open - 2);
    if (name == "title") text += escape(drawing.title);
    if (name == "style") text += page_css;
    if (name == "script") text += page_js;
    if (name == "data") text += data_of(drawing);
    at = close + 2;
  }
  return text;
}

}  // namespace penstock::view
