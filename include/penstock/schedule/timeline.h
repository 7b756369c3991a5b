// When each action ran: predicted by the simulator, measured by the executor, drawn by `view`.
#pragma once

#include <penstock/schedule/action.h>
#include <penstock/schedule/placement.h>

#include <cstdint>
#include <string>
#include <vector>

namespace penstock {

//! One action's time, in seconds since the step began. A transfer starts when it is posted and ends when it
//! is done.
struct TimedAction {
  Action action;
  double start = 0;
  double end = 0;
};

//! What a rank holds from a moment on.
struct MemorySample {
  double time = 0;
  std::uint64_t bytes = 0;
};

enum class TimelineSource { Predicted, Measured };

struct Timeline {
  std::string name;
  TimelineSource source = TimelineSource::Predicted;
  Placement placement;
  int microbatches = 0;
  std::vector<std::vector<TimedAction>> ranks;    //!< one list a rank, in order of start
  std::vector<std::vector<MemorySample>> memory;  //!< one list a rank, or none at all

  //! The end of the last action.
  double makespan() const;
};

}  // namespace penstock
