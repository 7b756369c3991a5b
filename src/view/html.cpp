// The HTML page: layout, style and script come from page/; the data is embedded as compact JSON.
#include "base/json.h"
#include "base/markup.h"
#include "view/numbers.h"
#include "view/page_parts.h"
#include "view/palette.h"

#include <penstock/view/render.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <vector>

namespace penstock::view {
namespace {

constexpr std::size_t kMaxSamples = 20'000;  //!< memory samples per rank; more would not be visible

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

// A row is one flat array of numbers, six per box: there may be a million of them.
std::string rows_text(const std::vector<std::vector<ActionBox>>& rows) {
  std::string text = "[";
  for (std::size_t r = 0; r < rows.size(); ++r) {
    if (r > 0) text += ',';
    append_row(text, rows[r]);
  }
  return text + "]";
}

//! Returns the memory curve, downsampled to at most `kMaxSamples`. Keeps the maximum of each group.
std::string memory_text(const std::vector<schedule::MemorySample>& samples, double scale) {
  const std::size_t stride = samples.size() / kMaxSamples + 1;
  std::string text = "[";
  for (std::size_t i = 0; i < samples.size(); i += stride) {
    const auto last = std::min(i + stride, samples.size());
    const auto most = std::max_element(samples.begin() + static_cast<std::ptrdiff_t>(i),
                                       samples.begin() + static_cast<std::ptrdiff_t>(last),
                                       [](const auto& a, const auto& b) { return a.bytes < b.bytes; });
    if (text.back() != '[') text += ',';
    append_number(text, most->time);
    text += ',';
    if (scale == 1) {
      append_number(text, static_cast<std::int64_t>(most->bytes));
    } else {
      append_number(text, static_cast<double>(most->bytes) * scale);
    }
  }
  return text + "]";
}

// The range of the memory axis of a panel, next to a measured one. What is measured includes memory that no
// prediction counts, so panels do not share an axis, and that of a measured panel does not start at 0.
std::string memory_range(const Panel& panel) {
  double least = std::numeric_limits<double>::infinity(), most = 0;
  for (const auto& rank : panel.memory) {
    for (const schedule::MemorySample& sample : rank) {
      least = std::min(least, static_cast<double>(sample.bytes));
      most = std::max(most, static_cast<double>(sample.bytes));
    }
  }
  std::string text = "[";
  const bool from_least = panel.measured && most > least;
  append_number(text, from_least ? std::max(std::floor(least - (most - least) / 4), 0.0) : 0.0, 17);
  text += ',';
  append_number(text, most, 17);
  return text + "]";
}

std::vector<int> stages_in(const std::vector<ActionBox>& row) {
  std::set<int> stages;
  for (const ActionBox& box : row) stages.insert(box.action.stage().value);
  return {stages.begin(), stages.end()};
}

std::string data_of(const Drawing& drawing) {
  double peak = 0;
  bool any_measured = false;
  for (const Panel& panel : drawing.panels) {
    any_measured |= panel.measured && !panel.memory.empty();
    for (const auto& rank : panel.memory) {
      for (const schedule::MemorySample& sample : rank)
        peak = std::max(peak, static_cast<double>(sample.bytes) * panel.memory_scale);
    }
  }
  JsonWriter json;
  json.begin_object()
      .field("ranks", drawing.ranks())
      .field("seconds", drawing.time_unit == TimeUnit::Seconds);
  json.key("facts").begin_array();
  for (const auto& [name, value] : drawing.facts) json.begin_array().value(name).value(value).end_array();
  json.end_array().key("kinds").begin_array();
  for (const schedule::ActionKind kind : kActionKinds) {
    const KindStyle& style = style_of(kind);
    json.begin_object().field("name", to_string(kind)).field("colour", style.color);
    json.field("meaning", style.meaning).end_object();
  }
  json.end_array().key("chunks").begin_array();
  for (const int chunk : drawing.chunk_of_stage) json.value(chunk);
  std::string peak_text;
  append_number(peak_text, peak, 17);
  json.end_array().key("memoryPeak").raw(peak_text).key("panels").begin_array();
  for (const Panel& panel : drawing.panels) {
    std::string end;
    append_number(end, panel.end);
    json.begin_object().field("name", panel.name).key("end").raw(end);
    json.key("summary").begin_array();
    for (const auto& [name, value] : panel.summary) json.begin_array().value(name).value(value).end_array();
    json.end_array();
    if (!panel.chunk_of_stage.empty()) {
      json.key("chunks").begin_array();
      for (const int chunk : panel.chunk_of_stage) json.value(chunk);
      json.end_array();
    }
    // The stages of each rank, for its label.
    json.key("stages").begin_array();
    for (const auto& row : panel.compute) {
      json.begin_array();
      for (const int stage : stages_in(row)) json.value(stage);
      json.end_array();
    }
    json.end_array();
    json.key("compute").raw(rows_text(panel.compute));
    json.key("communication").raw(rows_text(panel.communication));
    json.key("memory").begin_array();
    if (peak > 0)
      for (const auto& samples : panel.memory) json.raw(memory_text(samples, panel.memory_scale));
    json.end_array();
    if (any_measured && peak > 0 && !panel.memory.empty()) json.key("memoryRange").raw(memory_range(panel));
    json.end_object();
  }
  std::string text = json.end_array().end_object().text();
  // `</script>` in a name must not close the element.
  for (std::size_t at = 0; (at = text.find("</", at)) != std::string::npos; at += 3)
    text.replace(at, 2, "<\\/");
  return text;
}

}  // namespace

std::string to_html(const Drawing& drawing) {
  const std::string_view frame = kPageHtml;
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
    if (name == "title") text += escape_markup(drawing.title);
    if (name == "style") text += kPageCss;
    if (name == "script") text += kPageJs;
    if (name == "data") text += data_of(drawing);
    at = close + 2;
  }
  return text;
}

}  // namespace penstock::view
