// The options of `penstock train`: declared once, read from the command line and from TOML, passed to the
// ranks as command-line arguments.
#pragma once

#include "cli/verbosity.h"
#include "config/device.h"
#include "config/lora_settings.h"
#include "config/param_dtype.h"
#include "config/rank_counts.h"
#include "config/recipe_settings.h"
#include "config/settings.h"
#include "config/weight_settings.h"

#include <penstock/comm/world.h>
#include <penstock/models/gpt_options.h>
#include <penstock/train/model.h>
#include <penstock/train/options.h>
#include <penstock/train/tokens.h>

#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace penstock::tool {

struct TrainSettings {
  //! The tokenizer of the GPT for the characters of its text.
  static constexpr const char* kCharacters = "characters";

  std::string model, data, validation_data;
  RankRequest rank_request;
  int default_ranks = 2;  //!< pipeline ranks if no option sets a number of ranks
  std::optional<std::int64_t> stages_per_rank, stages, steps, batch, sequence, microbatches, eval_batches;
  RecipeSettings recipe;
  WeightSettings weights;
  LoraSettings adapters;
  std::vector<std::string> split, cuts, tensor_plan;
  std::string backend = "auto", schedule = "1F1B", loss_output, labels, config;
  std::string output, checkpoint, log_json, log_csv, tensorboard, timeline, trace, profile,
      failure_log;                // empty: none
  std::optional<double> timeout;  //!< in seconds; set by `resolve` if it was not given
  double validation = 0.1, grad_clip = 0;
  std::int64_t max_restarts = 0, sample = 300, eval_every = 0, checkpoint_every = 0;
  std::string prompt = "\n";
  std::string tokenizer = kCharacters;  //!< or `bytes`, or a file
  std::string document_separator;       //!< a token, as a number or as text; empty: none
  bool no_boundary_targets = false;
  DeviceChoice device = DeviceChoice::Auto;  //!< Cpu or Cuda after `resolve`
  std::string device_reason;                 //!< one line, set by `resolve`
  std::optional<int> local_ranks;            //!< ranks of this machine; by default all
  bool no_shuffle = false, drop_last = false;
  //! Whether training leaves out rows for validation; set if the run that is resumed determines it.
  std::optional<bool> holds_out;
  train::TokenDtype token_dtype = train::TokenDtype::Uint16;
  std::optional<std::int64_t> vocabulary;  //!< of the GPT; set when the token files are open
  std::int64_t epochs = 0;                 //!< 0 after the data is known: `steps` then has its steps
  bool dry_run = false, dashboard = false;
  Verbosity verbosity;
  ParamDtype param_dtype = ParamDtype::Auto;
  pipe::BalanceBy balance = pipe::BalanceBy::Parameters;
  train::LossMean loss_mean = train::LossMean::Auto;  //!< never Auto after the checks
  models::GptOptions gpt;
  train::RunOptions run;           // complete after `resolve`
  std::string resolved_config;     // the configuration of the run as TOML, stored in checkpoints
  std::set<std::string> given;     //!< keys of the options that were given, on the command line or in a file
  std::vector<std::string> notes;  //!< options without an effect, one line each; set by `resolve`

  void declare(Settings& settings);
  //! Resolves defaults and derived values. Throws UsageError for invalid combinations.
  void resolve();
  //! Creates the output directories and checks that they are writable. Called once, before ranks start.
  //! Returns one line per created directory. Throws UsageError if a path cannot be written or another run
  //! uses the checkpoint directory.
  std::vector<std::string> prepare_outputs() const;
  //! Performs the same checks without creating anything. Returns the directories that `prepare_outputs` would
  //! create.
  std::vector<std::string> check_outputs() const;

  bool failure_log_given = false;

  bool built_in() const { return model.empty(); }
  //! Whether training leaves out `validation` of the rows.
  bool holds_out_rows() const {
    return holds_out.value_or(run.eval_every.has_value() && validation_data.empty());
  }
  //! Whether the examples are sequences of tokens, for either model, and not characters of a text.
  bool reads_tokens() const;
  //! Whether a tokenizer other than `characters` is given.
  bool has_tokenizer() const { return tokenizer != kCharacters; }
  //! Options that this run ignores: those of the GPT if a model is given, and vice versa.
  std::vector<std::string> idle() const;
  //! Options that do not change what is trained. They are not part of the resolved configuration.
  static std::vector<std::string> display_options() { return {"--dry-run", "--quiet", "--verbose"}; }
  //! Sets the number of steps and the options that depend on it. Called by `resolve`, or if `--epochs` is
  //! given, when the data is open. Throws UsageError for invalid options.
  void resolve_steps(std::int64_t count);
  //! Throws UsageError if one of these options was given.
  void refuse_idle(const Settings& settings) const;
  //! The options for loading the exported model. Requires `!built_in()`.
  train::ArchiveOptions archive() const;
  //! The adapters of the model; nullopt without `--lora`.
  std::optional<train::LoraOptions> lora() const { return adapters.options(run.seed); }

 private:
  //! Options that do not apply to the kind of the data.
  std::vector<std::string> idle_for_data() const;
  //! Options that do not apply to a model that computes its own loss.
  std::vector<std::string> idle_for_loss() const;
  //! Whether the model computes its own loss: the data has no target, or has tokens and the model takes
  //! labels.
  bool computes_loss() const;
  void resolve_epochs();
  //! Reads the schedule from a file.
  void read_table();
  void resolve_stages();
  //! Drops what several replicas or tensor-parallel ranks would shard, if there is only one.
  void resolve_sharding();
  void resolve_outputs();
  //! Calls `visit` for each output directory and `lock` for that of checkpoints, and checks the directories
  //! of the output files. Returns the texts of `visit` that are not empty.
  std::vector<std::string> visit_outputs(
      const std::function<std::string(const std::string& path, const std::string& option)>& visit,
      const std::function<void(const std::string& directory)>& lock) const;

  // Option values whose type differs from that of the field they set, or which are inverted.
  train::Sharding sharding_ = train::Sharding::None;
  std::int64_t checkpoint_keep_ = 3, seed_ = 1;
  bool untied_ = false;
};

//! Path of the text that `./dev train` downloads to the build directory, or empty if it does not exist.
std::string fetched_text();

//! Parses operator indices: the values of `--cuts`.
graph::SplitPositions read_split_positions(const std::vector<std::string>& texts);

//! Parses `layers.2=beginning,layers.4=end`.
pipe::SplitPoints read_split_points(const std::vector<std::string>& entries);

//! Parses `blocks.*.up=colwise,blocks.*.down=rowwise`.
parallel::ParallelPlan read_tensor_plan(const std::vector<std::string>& entries);

}  // namespace penstock::tool
