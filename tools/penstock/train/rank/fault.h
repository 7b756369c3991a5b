// Fault injection for tests: PENSTOCK_FAULT makes a rank fail at a given point of the run.
//
//   PENSTOCK_FAULT="kill rank=1 step=3 action=1F2; throw rank=0 at=checkpoint attempt=1"
//
// Kinds: throw, exit, kill, stop (SIGSTOP), stall (forever), cut (close all connections), nan (in a
// parameter). Points: an action of the schedule, or `at` start, setup, step, update, checkpoint, end. Without
// a step, the fault occurs at the first step that reaches the point. `attempt` counts restarts (default 0).
#pragma once

#include <penstock/base/ids.h>
#include <penstock/schedule/action.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::tool {

enum class FaultKind { Throw, Exit, Kill, Stop, Stall, Disconnect, Nan };

struct Fault {
  FaultKind kind = FaultKind::Throw;
  Rank rank{0};
  std::optional<std::int64_t> step;
  std::string point = "step";  //!< the value of `at`, or the text of an action
  int attempt = 0;
};

//! Throws UsageError if the text is not a valid list of faults.
std::vector<Fault> parse_faults(std::string_view text);

class Faults {
 public:
  //! Reads PENSTOCK_FAULT and keeps the faults of this rank and attempt.
  static Faults from_environment(Rank rank);

  bool empty() const { return faults_.empty(); }
  //! Returns whether a fault is set for an action of this kind.
  bool has_action(schedule::ActionKind kind) const;
  //! Triggers the faults due at this point; `step` is nullopt during setup. Returns true if a parameter must
  //! become NaN.
  bool trigger(std::optional<std::int64_t> step, std::string_view point);

 private:
  std::vector<Fault> faults_;
};

}  // namespace penstock::tool
