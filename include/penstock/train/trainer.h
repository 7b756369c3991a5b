// The training loop over the ranks of a world. Every rank calls `run`; rank 0 reports.
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

//! The results of a completed step.
struct StepRecord {
  std::int64_t step = 0;  //!< from 1
  double loss = 0;        //!< mean over the complete batch
  double grad_norm = 0;   //!< norm of all gradients before clipping
  double rate = 0;
  double seconds = 0;
  std::optional<double> tokens_per_second;  //!< if the examples are sequences
  double examples_per_second = 0;
  double bubble = 0;                       //!< fraction of time in which the pipeline ranks are idle
  std::vector<std::uint64_t> peak_memory;  //!< peak resident bytes per rank
  bool skipped = false;                    //!< no update because a value was not finite

  //! Returns one line of the `log_json` file.
  std::string json() const;
};

struct RunInfo {
  std::string model, schedule;
  int stages = 1;
  std::int64_t first_step = 1;  //!< greater than 1 for a resumed run
  std::int64_t steps = 0;
};

//! Callbacks of a run, called on rank 0 only.
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
  std::vector<double> losses;  //!< of the steps of this run, without those before a resume
  std::optional<double> validation;
  std::string checkpoint;  //!< path of the last checkpoint written; empty if none
  std::string plan;        //!< the schedule as CSV, if it was planned from measured costs
  //! All parameters of the model, on rank 0, if `gather_parameters` is set.
  std::map<std::string, at::Tensor> parameters;
};

struct RunExtras {
  Observer* observer = nullptr;
  bool gather_parameters = false;
};

//! Triggers the injected faults that are due at the start of a process. Call before joining a world.
void announce_start();

//! Runs the training. If one rank fails, throws on every rank; the message names the step.
RunResult run(const comm::World& world, Model& model, const DataSource& data, const RunOptions& options,
              const RunExtras& extras = {});

}  // namespace penstock::train
