// Faults on order, for tests: PENSTOCK_FAULT makes a rank fail at a place of its run.
//
//   PENSTOCK_FAULT="kill rank=1 step=3 action=1F2; throw rank=0 at=checkpoint attempt=1"
//
// Kinds: throw, exit, kill, stop (SIGSTOP), stall (for ever), cut (all of its connections), nan (in a
// parameter). Places: an action of the schedule, or `at` start, setup, step, update, checkpoint, end. Without
// a step, the first that comes there; `attempt` counts restarts, 0 unless said.
#pragma once

#include <penstock/schedule/action.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::train {

enum class FaultKind { Throw, Exit, Kill, Stop, Stall, Cut, Nan };

struct Fault {
  FaultKind kind = FaultKind::Throw;
  int rank = 0;
  std::optional<std::int64_t> step;
  std::string place = "step";  //!< a word, or the text of an action
  int attempt = 0;
};

//! UsageError for a text that is no list of faults.
std::vector<Fault> parse_faults(std::string_view text);

class Faults {
 public:
  //! Those of PENSTOCK_FAULT that are for this rank and attempt.
  static Faults from_environment(int rank);

  bool empty() const { return faults_.empty(); }
  //! Whether one of them is for a transfer of this kind.
  bool wait_for(ActionKind kind) const;
  //! Does what is due here. True if a parameter is to become NaN.
  bool at(std::int64_t step, std::string_view place);

 private:
  std::vector<Fault> faults_;
};

//! Which attempt of the launcher this is, from 0.
int attempt_number();

}  // namespace penstock::train
