// Chrome's trace event format. Times are in microseconds; a unit of a drawing without seconds is 1 ms.
#include "base/json.h"
#include "base/text.h"
#include "view/numbers.h"
#include "view/palette.h"

#include <penstock/view/render.h>

#include <algorithm>
#include <unordered_map>

namespace penstock::view {
namespace {

constexpr int kComputeTrack = 0, kFirstLaneTrack = 1;

class Trace {
 public:
  explicit Trace(const Drawing& drawing)
      : drawing_(drawing), factor_(drawing.time_unit == TimeUnit::Seconds ? 1e6 : 1e3) {}

  std::string text() {
    for (std::size_t p = 0; p < drawing_.panels.size(); ++p)
      add_panel(drawing_.panels[p], static_cast<int>(p));
    // One event per line.
    return JsonWriter()
               .begin_object()
               .field("displayTimeUnit", "ms")
               .key("traceEvents")
               .raw("[\n" + join(events_, ",\n") + "\n]")
               .end_object()
               .text() +
           "\n";
  }

 private:
  void add_panel(const Panel& panel, int number) {
    const int first = next_process_;
    const auto ranks = static_cast<int>(panel.compute.size());
    next_process_ += ranks;
    for (int r = 0; r < ranks; ++r) {
      const auto rank = static_cast<std::size_t>(r);
      const int process = first + r;
      name("process_name", process, kComputeTrack,
           str_cat("rank ", r, (drawing_.panels.size() > 1 ? " (" + panel.name + ")" : "")));
      JsonWriter order = event(process, kComputeTrack, "M");
      order.field("name", "process_sort_index").key("args").begin_object().field("sort_index", process);
      add(order.end_object());
      name("thread_name", process, kComputeTrack, "compute");
      for (const ActionBox& box : panel.compute[rank]) {
        // The parts of an overlap run at the same time, so one of them gets a separate track.
        slice(process, box.part == BoxPart::BottomHalf ? kOverlapTrack : kComputeTrack, box);
        if (box.part == BoxPart::BottomHalf && named_overlap_ != process) {
          name("thread_name", process, kOverlapTrack, "compute, overlapped");
          named_overlap_ = process;
        }
      }
      if (rank < panel.communication.size()) add_communication(panel.communication[rank], process, number);
      if (rank < panel.memory.size()) add_memory(panel.memory[rank], process);
    }
  }

  void add_communication(const std::vector<ActionBox>& row, int process, int panel) {
    int lanes = 0;
    for (const ActionBox& box : row) {
      for (; lanes <= box.lane; ++lanes) {
        name("thread_name", process, kFirstLaneTrack + lanes,
             lanes == 0 ? "communication" : str_cat("communication ", lanes + 1));
      }
      slice(process, kFirstLaneTrack + box.lane, box);
      if (box.action.is_transfer()) flow(process, box, panel);
    }
  }

  void add_memory(const std::vector<schedule::MemorySample>& samples, int process) {
    for (const schedule::MemorySample& sample : samples) {
      JsonWriter level = event(process, kComputeTrack, "C");
      level.field("name", "memory").key("ts").raw(microseconds(sample.time));
      level.key("args").begin_object().field("bytes", sample.bytes);
      add(level.end_object());
    }
  }

  //! The beginning of an event; `add` ends it.
  static JsonWriter event(int process, int thread, const char* phase) {
    JsonWriter json;
    json.begin_object().field("ph", phase).field("pid", process).field("tid", thread);
    return json;
  }
  void add(JsonWriter& event) { events_.push_back(event.end_object().text()); }

  std::string microseconds(double time) const {
    std::string text;
    append_number(text, time * factor_, 12);
    return text;
  }

  void name(const char* what, int process, int thread, const std::string& value) {
    JsonWriter json = event(process, thread, "M");
    json.field("name", what).key("args").begin_object().field("name", value);
    add(json.end_object());
  }

  void slice(int process, int thread, const ActionBox& box) {
    JsonWriter json = event(process, thread, "X");
    json.field("name", to_string(box.action)).field("cat", style_of(box.action.kind()).meaning);
    json.key("ts").raw(microseconds(box.start)).key("dur").raw(microseconds(box.end - box.start));
    json.key("args").begin_object().field("stage", box.action.stage().value);
    if (has_microbatch(box.action)) json.field("microbatch", box.action.microbatch().value);
    if (box.critical) json.field("critical", true);
    add(json.end_object());
  }

  //! Adds one end of the arrow from a send to its receive; both ends have the id of the message.
  void flow(int process, const ActionBox& box, int panel) {
    const schedule::Action& action = box.action;
    const bool backward = action.kind() == schedule::ActionKind::SendBackward ||
                          action.kind() == schedule::ActionKind::RecvBackward;
    const int from = action.is_send() ? action.stage().value : action.peer().value;
    const int to = action.is_send() ? action.peer().value : action.stage().value;
    JsonWriter json = event(process, kFirstLaneTrack + box.lane, action.is_send() ? "s" : "f");
    json.field("name", "transfer").field("cat", "transfer");
    json.field("id",
               str_cat(panel, (backward ? ".b." : ".f."), from, ".", to, ".", action.microbatch().value));
    json.key("ts").raw(microseconds(action.is_send() ? box.start : box.end));
    if (!action.is_send()) json.field("bp", "e");
    add(json);
  }

  static constexpr int kOverlapTrack = 99;

  const Drawing& drawing_;
  double factor_;
  int named_overlap_ = -1;
  int next_process_ = 0;
  std::vector<std::string> events_;
};

}  // namespace

std::string to_trace(const Drawing& drawing) {
  return Trace(drawing).text();
}

}  // namespace penstock::view
