// The training loop over the ranks of a world. Every rank calls `run`; rank 0 reports.
#pragma once

#include <penstock/comm/world.h>
#include <penstock/schedule/action.h>
#include <penstock/schedule/timeline.h>
#include <penstock/train/data.h>
#include <penstock/train/error.h>
#include <penstock/train/model.h>
#include <penstock/train/options.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::train {

//! The results of a completed step. Times are means over the steps since the last record.
struct StepRecord {
  std::int64_t step = 0;  //!< from 1
  double loss = 0;        //!< mean over the complete batch
  double grad_norm = 0;   //!< norm of all gradients before clipping
  double rate = 0;        //!< learning rate
  double seconds = 0;
  std::optional<double> tokens_per_second;  //!< if the examples are sequences
  double examples_per_second = 0;
  double bubble = 0;                       //!< fraction of time in which the pipeline ranks are idle
  std::vector<std::uint64_t> peak_memory;  //!< peak bytes per rank: of its device, or resident for the CPU
  bool skipped = false;                    //!< no update because a value was not finite
  std::optional<double> loss_scale{};      //!< of the step, if losses are scaled
  //! After the step, if it was validated. In the logs only: Observer::on_evaluation reports it.
  std::optional<double> validation_loss{};
};

//! Returns one line of the `log_json` file.
std::string to_json(const StepRecord& record);

//! What a run is about to do.
struct RunInfo {
  std::string model, schedule;
  int stages = 1;
  std::int64_t first_step = 1;  //!< greater than 1 for a resumed run
  std::int64_t steps = 0;
};

//! Receives the results of a run on rank 0.
class Observer {
 public:
  virtual ~Observer() = default;
  //! Called before the first step.
  virtual void on_begin(const RunInfo& /*info*/) {}
  //! Called after each logged step (RunOptions::log_every).
  virtual void on_step(const StepRecord& /*record*/) {}
  //! Called after `on_step` with the measured timeline of the step if RunOptions::live_timeline is set. It
  //! covers the pipeline ranks of the first replica.
  virtual void on_timeline(std::int64_t /*step*/, const schedule::Timeline& /*timeline*/) {}
  //! Called after each validation, with the validation loss.
  virtual void on_evaluation(std::int64_t /*step*/, double /*loss*/) {}
  //! A checkpoint is complete on disk.
  virtual void on_checkpoint(std::int64_t /*step*/, const std::filesystem::path& /*path*/) {}
  //! The run continues from a checkpoint with these notes (RunExtras::notes). Called before `on_begin`.
  virtual void on_resume(const std::map<std::string, std::string>& /*notes*/) {}
  //! A message for the user.
  virtual void on_message(const std::string& /*text*/) {}
};

//! The parts of a run outside the actions of its schedule.
enum class RunPhase {
  Setup,       //!< before the stages are built
  Step,        //!< before the first action of a step
  Update,      //!< after the last action of a step, before the optimizer
  Checkpoint,  //!< before a checkpoint is written
  End,         //!< after the last step
};
std::string_view to_string(RunPhase phase);

using StageModules = std::map<StageId, std::shared_ptr<runtime::StageModule>>;

//! The state of a rank when its hook is called. Valid during the call.
struct RankState {
  std::optional<std::int64_t> step;  //!< from 1; nullopt during setup
  const StageModules& stages;        //!< of this rank; empty before they are built
};

//! Follows one rank of a run, for progress displays and tests. Calls come from the thread that runs the step.
//! An exception thrown by a call fails the run.
class RankHook {
 public:
  virtual ~RankHook() = default;
  //! Called when the rank enters a phase.
  virtual void on_phase(RunPhase /*phase*/, const RankState& /*state*/) {}
  //! Called before each action of a kind for which `follows` returns true.
  virtual void on_action(const schedule::Action& /*action*/, const RankState& /*state*/) {}
  //! Asked once per kind when the stages are built. By default, true except for receives, which do not block.
  virtual bool follows(schedule::ActionKind kind) const;
};

//! The results of a run.
struct RunResult {
  std::vector<double> losses;   //!< of the logged steps of this run, without those before a resume
  std::int64_t first_step = 1;  //!< the step of the first loss
  std::int64_t last_step = 0;   //!< the last completed step
  int stopped = 0;  //!< the largest value of RunExtras::stop on any rank if it ended the run, else 0
  std::optional<double> validation_loss;
  std::optional<std::filesystem::path> checkpoint;  //!< the newest checkpoint of the run
  std::optional<std::string> plan;                  //!< the schedule as CSV, if it was AutoSchedule
  //! All parameters of the model, on the CPU of rank 0, if `gather_parameters` is set.
  std::map<std::string, at::Tensor> parameters;
};

//! Observers and optional results of a run.
struct RunExtras {
  Observer* observer = nullptr;  //!< used on rank 0 only
  RankHook* hook = nullptr;      //!< of this rank
  bool gather_parameters = false;
  //! Called in every step on CPUs, or if the host reads the gradient norm of every step; otherwise in every
  //! logged step. A value other than 0 on any rank ends the run on all ranks after that step, with a
  //! checkpoint if the run writes any. The value is a reason, such as the number of a signal.
  std::function<int()> stop{};
  //! Strings to store in every checkpoint, by name, such as the configuration. The run adds its own: `seed`,
  //! `plan` and `cuts` if it chose them, `position` if the data has one, and `lora` with LoRA.
  std::map<std::string, std::string> notes{};
};

//! Runs the training loop. If a step fails on one rank, throws RunError on every rank. A UsageError is thrown
//! as it is, and so is any error before the first or after the last step.
RunResult run(const comm::World& world, const Model& model, const DataSource& data, const RunOptions& options,
              const RunExtras& extras = {});

//! Checks a run in one process, without communication, before its ranks start: the options, the schedule, the
//! numbers of stages and tensor-parallel ranks, the rows of microbatches and the checkpoint directory, which
//! must be writable and must not contain checkpoints of another run; to resume, the tensors of its newest
//! checkpoint must match the model. Splits the model, but loads no weights, except to compare the base of
//! adapters with that of the checkpoint, and writes nothing. Throws UsageError. Does not verify the elements
//! of a checkpoint: the ranks do.
void check_before_start(const Model& model, const RunOptions& options);

//! How often the launcher has restarted this run; 0 in the first attempt.
int restart_count();

}  // namespace penstock::train
