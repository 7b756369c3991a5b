// The training loop: a model, data and options over the ranks of a world. Every rank calls `run`; rank 0
// reports.
#pragma once

#include <penstock/comm/world.h>
#include <penstock/train/data.h>
#include <penstock/train/model.h>
#include <penstock/train/options.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace penstock::train {

//! What is known of a step when it is done.
struct StepRecord {
  std::int64_t step = 0;  //!< from 1
  double loss = 0;        //!< of the whole batch
  double grad_norm = 0;   //!< of all gradients, before clipping
  double rate = 0;
  double seconds = 0;
  std::optional<double> tokens_per_second;  //!< where examples are sequences
  double examples_per_second = 0;
  double bubble = 0;                       //!< idle share of the pipeline's ranks
  std::vector<std::uint64_t> peak_memory;  //!< resident bytes of each rank
  bool skipped = false;                    //!< no update, because it was not finite

  //! One line of `--log-json`.
  std::string json() const;
};

struct RunInfo {
  std::string model, schedule;
  int stages = 1;
  std::int64_t first_step = 1;  //!< more than 1 after a resume
  std::int64_t steps = 0;
};

//! Called on rank 0 only.
class Observer {
 public:
  virtual ~Observer() = default;
  virtual void began(const RunInfo&) {}
  virtual void stepped(const StepRecord&) {}
  virtual void evaluated(std::int64_t /*step*/, double /*loss*/) {}
  //! A checkpoint is complete on disk.
  virtual void saved(std::int64_t /*step*/, const std::string& /*path*/) {}
  virtual void noted(const std::string& /*text*/) {}
};

struct RunResult {
  std::vector<double> losses;  //!< of the steps that were run here
  std::optional<double> validation;
  std::string checkpoint;  //!< the last that was written; empty if none
  std::string plan;        //!< the schedule as CSV, if it was made for measured costs
  //! On rank 0, if asked for: every parameter of the whole model.
  std::map<std::string, at::Tensor> parameters;
};

struct RunExtras {
  Observer* observer = nullptr;
  bool gather_parameters = false;
};

//! For a process that is about to join a world: commits the faults that are due at its start.
void announce_start();

//! Trains. Throws on every rank when one fails; the message names the step.
RunResult run(const World& world, Model& model, const DataSource& data, const RunOptions& options,
              const RunExtras& extras = {});

}  // namespace penstock::train
