// Timelines: when each action ran. Predicted by the simulator, measured by the executor, drawn by `view`.
#pragma once

#include <penstock/schedule/action.h>
#include <penstock/schedule/stage_placement.h>

#include <cstdint>
#include <string>
#include <vector>

namespace penstock::schedule {

//! Start and end of one action, in seconds since the start of the step. A transfer starts when it is posted
//! and ends when it is complete.
struct TimedAction {
  Action action;
  double start = 0;
  double end = 0;
};

//! The memory in use on a rank from `time` until the next sample.
struct MemorySample {
  double time = 0;
  std::uint64_t bytes = 0;
};

//! Whether the simulator or the executor produced a timeline.
enum class TimelineSource { Predicted, Measured };

//! The start and end of every action of a step.
struct Timeline {
  std::string name;
  TimelineSource source = TimelineSource::Predicted;
  Placement placement;
  int microbatches = 0;
  std::vector<std::vector<TimedAction>> ranks;  //!< one list per rank, ordered by start
  //! One list per rank, or empty. Predicted: parameters, their gradients and optimizer states, and what
  //! microbatches keep. Measured: all memory in use (runtime::StepOptions::measure_memory).
  std::vector<std::vector<MemorySample>> memory;

  //! The end of the last action.
  double makespan() const;
};

}  // namespace penstock::schedule
