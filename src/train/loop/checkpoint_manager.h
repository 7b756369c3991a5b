// Saves the checkpoints of a run and resumes from them in any topology.
#pragma once

#include "train/model/assembly.h"

#include <penstock/checkpoint/writer.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace penstock::train {

//! Decisions based on measured times. They are stored so that a restart repeats them.
struct Decisions {
  std::string plan{};                 //!< the schedule, as CSV
  std::optional<ModelSplit> split{};  //!< if it was balanced by measured times
  std::string loss_scale{};           //!< the state of the loss scale; empty if there is none
  std::string position{};             //!< in the data; empty if it has none

  bool empty() const { return plan.empty() && !split; }
};

class CheckpointManager {
 public:
  //! Finds the checkpoint to resume from, if `resume` is set, or after a restart if there is one. Throws
  //! UsageError if the directory contains checkpoints of another run. Collective.
  CheckpointManager(const comm::Group& world, const RunOptions& options, checkpoint::Notes notes);

  //! The last completed step and the stored decisions; 0 and empty for a new run.
  std::int64_t step() const { return resume_ ? resume_->checkpoint.step() : 0; }
  Decisions decisions() const;
  //! A note of the checkpoint to resume from.
  std::optional<std::string> note(const std::string& name) const {
    return resume_ ? resume_->checkpoint.note(name) : std::nullopt;
  }
  //! Newer checkpoints that were skipped, and differences from the run that wrote this one.
  std::vector<std::string> messages() const;

  //! Loads parameters, buffers and optimizer states, or the initial weights of a new run.
  void load(const Assembly& assembly, const Model& model);

  //! Whether this run writes checkpoints.
  bool enabled() const { return writer_ != nullptr; }
  //! Starts to write the state after a step. Waits for the previous write and throws its error.
  void save(std::int64_t step, const Assembly& assembly, const Decisions& decisions);
  //! Call it before parameters or optimizer states change: the stream of this rank waits until they are
  //! copied for the last checkpoint.
  void wait_for_copies();
  //! Waits until the last checkpoint is on disk.
  void wait();
  //! The newest step whose checkpoint this run has completed. A write can take several steps.
  std::optional<std::int64_t> last_complete() const;
  //! The newest checkpoint that this run has completed or resumed from.
  std::optional<std::filesystem::path> newest() const;

 private:
  void initialize(const Assembly& assembly, const Model& model);

  comm::Group world_;
  const RunOptions& options_;
  checkpoint::Notes notes_;  // of the user
  std::optional<checkpoint::ResumePoint> resume_;
  std::vector<std::string> messages_;  // allowed differences, and why no checkpoints are written
  std::unique_ptr<checkpoint::CheckpointWriter> writer_;
};

}  // namespace penstock::train
