// Drawings as numbers.
#include "api/boxes.h"

#include "view/palette.h"

namespace penstock::playground {
namespace {

void append_box(std::vector<double>& numbers, const view::ActionBox& box) {
  const int microbatch = view::has_microbatch(box.action) ? box.action.microbatch().value : -1;
  const int flags = static_cast<int>(box.part) + (box.critical ? 4 : 0) + 8 * box.lane;
  numbers.insert(
      numbers.end(),
      {static_cast<double>(box.action.kind()), static_cast<double>(box.action.stage().value),
       static_cast<double>(microbatch), box.start, box.end - box.start, static_cast<double>(flags)});
}

template <class Item, class Append>
void write_rows(JsonWriter& out, const char* key, const std::vector<std::vector<Item>>& rows,
                const Append& append) {
  out.key(key).begin_array();
  for (const std::vector<Item>& row : rows) {
    out.value(static_cast<std::int64_t>(row.size()));
    for (const Item& item : row) append(item);
  }
  out.end_array();
}

}  // namespace

void write_boxes(JsonWriter& out, const view::Drawing& drawing, std::vector<double>& numbers) {
  const view::Panel& panel = drawing.panels.front();
  const auto add_box = [&](const view::ActionBox& box) { append_box(numbers, box); };
  out.begin_object().field("end", panel.end).key("chunk_of_stage").begin_array();
  for (const int chunk : drawing.chunk_of_stage) out.value(chunk);
  out.end_array();
  write_rows(out, "compute", panel.compute, add_box);
  write_rows(out, "communication", panel.communication, add_box);
  write_rows(out, "memory", panel.memory, [&](const schedule::MemorySample& sample) {
    numbers.insert(numbers.end(), {sample.time, static_cast<double>(sample.bytes)});
  });
  out.end_object();
}

}  // namespace penstock::playground
