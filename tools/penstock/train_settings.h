// The options of `penstock train`: declared once, read from the command line and from TOML, given to the
// ranks as words.
#pragma once

#include "device.h"
#include "rank_counts.h"
#include "settings.h"

#include <penstock/comm/world.h>
#include <penstock/models/gpt_options.h>
#include <penstock/train/model.h>
#include <penstock/train/options.h>

#include <string>
#include <vector>

namespace penstock::tool {

struct TrainSettings {
  std::string model, data;
  RankRequest asked;
  std::optional<std::int64_t> stages_per_rank, stages, steps, batch, sequence, microbatches, warmup,
      eval_batches;
  std::optional<double> rate;
  std::vector<std::string> split, tensor_plan;
  std::string backend = "auto", output, loss_output, config, failure_log;
  double timeout = 300, validation = 0.1;
  std::int64_t max_restarts = 0, sample = 300;
  std::string prompt = "\n";
  DeviceChoice device = DeviceChoice::Auto;
  bool no_shuffle = false;  // file order is the only order
  train::BalanceKind balance = train::BalanceKind::Parameters;
  train::LossKind loss = train::LossKind::CrossEntropy;
  models::GptOptions gpt;
  train::RunOptions run;

  void declare(Settings& settings);
  //! Fills in what follows from the rest; UsageError for what does not fit.
  void settle();
  //! Once, before ranks start: makes the directories that are asked for and tries whether they can be written
  //! to. Returns a line for each that was made. UsageError for what cannot be written, and for a directory of
  //! checkpoints that another run is using.
  std::vector<std::string> prepare_outputs() const;

  bool failure_log_given = false;

  bool built_in() const { return model.empty(); }
  //! Options that this run does not look at: those of the GPT for a model, and the other way round.
  std::vector<std::string> idle() const;
  //! UsageError where one of those was given.
  void refuse_idle(const Settings& settings) const;
  //! What the model is asked for, of a run with one.
  train::ArchiveOptions archive() const;

 private:
  void settle_stages();
  void settle_outputs();

  // Whole numbers and flags that the options hold in other types, or the other way round.
  std::int64_t checkpoint_keep_ = 3, seed_ = 1;
  bool untied_ = false;
};

//! The text that `./dev train` fetches, next to the build; empty where there is none.
std::string fetched_text();

//! UsageError for a backend that is unknown or that this libtorch lacks.
void check_backend(const std::string& name);

//! `layers.2=beginning,layers.4=end`
SplitPoints read_split_points(const std::vector<std::string>& words);

//! `blocks.*.up=colwise,blocks.*.down=rowwise`
ParallelPlan read_tensor_plan(const std::vector<std::string>& words);

}  // namespace penstock::tool
