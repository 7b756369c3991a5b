// Chrome's trace event format. Times are in microseconds; a unit of a drawing without seconds is 1 ms.
#include "base/json.h"
#include "view/numbers.h"
#include "view/palette.h"

#include <penstock/view/render.h>

#include <algorithm>
#include <unordered_map>

namespace penstock::view {
namespace {

constexpr int compute_track = 0, first_lane_track = 1;

class Trace {
 public:
  explicit Trace(const Drawing& drawing) : drawing_(drawing), factor_(drawing.seconds ? 1e6 : 1e3) {}

  std::string text() {
    out_ = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[";
    for (std::size_t p = 0; p < drawing_.panels.size(); ++p)
      add_panel(drawing_.panels[p], static_cast<int>(p));
    return out_ + "\n]}\n";
  }

 private:
  void add_panel(const Panel& panel, int number) {
    const int first = number * drawing_.ranks();
    for (int r = 0; r < drawing_.ranks(); ++r) {
      const auto rank = static_cast<std::size_t>(r);
      const int process = first + r;
      name("process_name", process, compute_track,
           "rank " + std::to_string(r) + (drawing_.panels.size() > 1 ? " (" + panel.name + ")" : ""));
      event(process, compute_track, "M");
      out_ += ",\"name\":\"process_sort_index\",\"args\":{\"sort_index\":" + std::to_string(process) + "}}";
      name("thread_name", process, compute_track, "compute");
      for (const ActionBox& box : panel.compute[rank]) {
        // The parts of an overlap run at the same time, so one of them gets a separate track.
        slice(process, box.part == BoxPart::BottomHalf ? overlap_track : compute_track, box);
        if (box.part == BoxPart::BottomHalf && named_overlap_ != process) {
          name("thread_name", process, overlap_track, "compute, overlapped");
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
        name("thread_name", process, first_lane_track + lanes,
             lanes == 0 ? "communication" : "communication " + std::to_string(lanes + 1));
      }
      slice(process, first_lane_track + box.lane, box);
      if (box.action.is_transfer()) flow(process, box, panel);
    }
  }

  void add_memory(const std::vector<schedule::MemorySample>& samples, int process) {
    for (const schedule::MemorySample& sample : samples) {
      event(process, compute_track, "C");
      out_ += ",\"name\":\"memory\",\"ts\":";
      append_number(out_, sample.time * factor_, 12);
      out_ += ",\"args\":{\"bytes\":" + std::to_string(sample.bytes) + "}}";
    }
  }

  void event(int process, int thread, const char* phase) {
    out_ += out_.back() == '[' ? "\n" : ",\n";
    out_ += std::string("{\"ph\":\"") + phase + "\",\"pid\":" + std::to_string(process) +
            ",\"tid\":" + std::to_string(thread);
  }

  void name(const char* what, int process, int thread, const std::string& value) {
    event(process, thread, "M");
    out_ += std::string(",\"name\":\"") + what + "\",\"args\":{\"name\":" + json_quote(value) + "}}";
  }

  void slice(int process, int thread, const ActionBox& box) {
    event(process, thread, "X");
    out_ += ",\"name\":" + json_quote(to_string(box.action)) +
            ",\"cat\":" + json_quote(look_of(box.action.kind()).meaning) + ",\"ts\":";
    append_number(out_, box.start * factor_, 12);
    out_ += ",\"dur\":";
    append_number(out_, (box.end - box.start) * factor_, 12);
    out_ += ",\"args\":{\"stage\":" + std::to_string(box.action.stage().value);
    if (has_microbatch(box.action))
      out_ += ",\"microbatch\":" + std::to_string(box.action.microbatch().value);
    if (box.critical) out_ += ",\"critical\":true";
    out_ += "}}";
  }

  //! Appends one end of the arrow from a send to its receive; both ends have the id of the message.
  void flow(int process, const ActionBox& box, int panel) {
    const schedule::Action& action = box.action;
    const bool backward = action.kind() == schedule::ActionKind::SendBackward ||
                          action.kind() == schedule::ActionKind::RecvBackward;
    const int from = action.is_send() ? action.stage().value : action.peer().value;
    const int to = action.is_send() ? action.peer().value : action.stage().value;
    event(process, first_lane_track + box.lane, action.is_send() ? "s" : "f");
    out_ += ",\"name\":\"transfer\",\"cat\":\"transfer\",\"id\":\"" + std::to_string(panel) +
            (backward ? ".b." : ".f.") + std::to_string(from) + "." + std::to_string(to) + "." +
            std::to_string(action.microbatch().value) + "\",\"ts\":";
    append_number(out_, (action.is_send() ? box.start : box.end) * factor_, 12);
    out_ += action.is_send() ? "}" : ",\"bp\":\"e\"}";
  }

  static constexpr int overlap_track = 99;

  const Drawing& drawing_;
  double factor_;
  int named_overlap_ = -1;
  std::string out_;
};

}  // namespace

std::string to_trace(const Drawing& drawing) {
  return Trace(drawing).text();
}

}  // namespace penstock::view
