// Checkpoints of a run: what each rank hands in, and how a run goes on from one, in whatever topology.
#pragma once

#include "train/assembly.h"

#include <penstock/checkpoint/writer.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace penstock::train {

//! What a run decided by measured times; stored, so that a restart repeats it.
struct Decisions {
  std::string plan{};  //!< the schedule, as CSV
  std::string cuts{};  //!< where the stages begin

  bool empty() const { return plan.empty() && cuts.empty(); }
};

class Saves {
 public:
  //! Looks for the checkpoint to go on from: where that is asked for, and after a restart where there is one.
  //! UsageError for a directory that holds another run's. Every rank must call it.
  Saves(const Mesh& mesh, const RunOptions& options);

  //! The step that is done, and what was measured for the run; 0 and empty for a new one.
  std::int64_t step() const { return resume_ ? resume_->checkpoint.step() : 0; }
  Decisions decisions() const;
  //! Newer checkpoints that could not be used, and what differs from the run that wrote this one.
  std::vector<std::string> remarks() const;

  //! Fills parameters, buffers and the optimizer's states.
  void load(const Assembly& assembly);

  bool on() const { return writer_ != nullptr; }
  //! Begins to write the state after a step; the one before must be done, and its error comes here.
  void save(std::int64_t step, const Assembly& assembly, const Decisions& decisions);
  //! Until the last one is on disk.
  void wait();
  //! The newest step whose checkpoint this run has completed; it may be under way for some steps.
  std::optional<std::int64_t> last_complete() const;
  std::string newest() const;

 private:
  const Mesh& mesh_;
  const RunOptions& options_;
  std::optional<ResumePoint> resume_;
  std::vector<std::string> passed_over_;  // tensors that were not loaded, where that is allowed
  std::unique_ptr<CheckpointWriter> writer_;
};

}  // namespace penstock::train
