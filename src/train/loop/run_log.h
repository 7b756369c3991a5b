// The logs of a run: JSON Lines, CSV and TensorBoard. Each is written only if its path is set.
#pragma once

#include "base/io/event_file.h"
#include "train/loop/log_file.h"

#include <penstock/train/options.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace penstock::train {

//! The scalars of a step for TensorBoard: the numbers of the JSON log, with one entry per rank for the
//! memory.
std::vector<Scalar> scalars_of(const StepRecord& record);

class RunLog {
 public:
  //! Writes nothing if `writes` is false. `first` is the next step to be written: a run that resumes keeps
  //! what was logged before it, and replaces the rest.
  RunLog(const RunOptions& options, bool writes, std::int64_t first);

  void write(const StepRecord& record);

 private:
  LogFile json_, csv_;
  std::optional<EventFile> events_;
};

}  // namespace penstock::train
