// Options of a training run. Plain data: the tool reads them from the command line and from TOML; programs
// set them directly.
#pragma once

#include <penstock/checkpoint/rename.h>
#include <penstock/plan/schedule_choice.h>
#include <penstock/schedule/generate.h>
#include <penstock/train/learning_rate.h>
#include <penstock/train/parameter_groups.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace penstock::train {

//! The optimizer of a run.
enum class OptimizerKind { Sgd, AdamW, Adam, Adagrad, RmsProp };
//! The loss of an exported model.
enum class LossKind {
  CrossEntropy,  //!< of class indices, or of probabilities in the shape of the logits
  Mse,           //!< mean squared error
  Bce,           //!< binary cross entropy of logits
  L1,            //!< mean absolute error
};
//! What a loss that an exported model computes itself is a mean over.
enum class LossMean {
  Auto,        //!< Rows without an integer input of labels, else one of the others, from the graph
  Rows,        //!< the rows of the batch
  Labels,      //!< the entries of the input of labels other than -100
  NextLabels,  //!< the same without the first label of each row: each position predicts the next label
};
//! What replicas shard.
enum class Sharding {
  None,
  Optimizer,  //!< optimizer states (ZeRO-1)
  Gradients,  //!< gradients and optimizer states (ZeRO-2)
  Full,       //!< parameters, gradients and optimizer states (ZeRO-3)
};
//! Whether stages compute with autocast.
enum class Precision {
  Float32,   //!< no autocast
  Bfloat16,  //!< autocast to bfloat16
  Float16,   //!< autocast to float16, with a dynamic loss scale
};
//! The type of the parameters with which stages compute. If it is bfloat16 or float16, the optimizer updates
//! float32 copies of the trained parameters, the master weights, and the stages compute with values that are
//! rounded from them after each update; checkpoints contain the master weights. Parameters that are not
//! trained keep the type of the model.
enum class ParameterDtype {
  Auto,      //!< that of the model
  Bfloat16,  //!< bfloat16; also converts floating-point inputs of the stages
};
//! What to do if a loss or gradient is not finite.
enum class NanPolicy {
  Stop,  //!< stop the run; the error names the microbatch and stage where it first appeared
  Skip,  //!< skip the update of the step and continue
  Ignore,
};
//! What to do if a checkpoint cannot be written.
enum class StoragePolicy { Stop, Warn };

// The names on the command line and in configuration files: `adamw`, `cross_entropy`, …
std::string_view to_string(OptimizerKind kind);
std::string_view to_string(LossKind kind);
std::string_view to_string(LossMean mean);
std::string_view to_string(Sharding sharding);
std::string_view to_string(Precision precision);
std::string_view to_string(ParameterDtype dtype);
std::string_view to_string(NanPolicy policy);
std::string_view to_string(StoragePolicy policy);

// A run generates an AutoSchedule from costs that it measures in its first steps.
using plan::AutoSchedule;
using plan::parse_schedule_choice;
using plan::ScheduleChoice;

//! How the model is distributed over ranks. In the order of world ranks, the tensor-parallel rank varies
//! fastest, then the replica, then the pipeline rank.
struct ParallelOptions {
  int pp = 1;  //!< pipeline ranks
  int tp = 1;  //!< tensor-parallel ranks
  int dp = 1;  //!< replicas
  Sharding sharding = Sharding::None;
  ScheduleChoice schedule = schedule::ScheduleKind::OneFOneB;
  //! A schedule of your own instead of `schedule`. Its counts must equal the others.
  std::optional<schedule::Schedule> table{};
  std::optional<int> stages_per_rank{};  //!< default: that of the schedule, or 1 for AutoSchedule
  int microbatches = 4;
  bool recompute = false;  //!< keep only the stage inputs of each microbatch and recompute activations
  //! Recompute only the activations of these modules, instead of whole stages: patterns of module paths, as
  //! for parameters (parameter_groups.h). Of modules that contain each other, the outer one counts.
  std::vector<std::string> recompute_modules{};

  int ranks() const { return pp * tp * dp; }
};

//! The optimizer and its hyperparameters, with the meaning that they have in PyTorch. A hyperparameter that
//! the optimizer does not have must keep its default.
struct OptimizerOptions {
  OptimizerKind kind = OptimizerKind::AdamW;
  double weight_decay = 0;            //!< decoupled for AdamW, else added to the gradient
  double momentum = 0;                //!< Sgd, RmsProp
  double beta1 = 0.9, beta2 = 0.999;  //!< AdamW, Adam
  std::optional<double> epsilon{};    //!< all except Sgd; default: 1e-8, for Adagrad 1e-10
  double dampening = 0;               //!< Sgd: of the momentum
  bool nesterov = false;              //!< Sgd: with momentum and without dampening
  bool amsgrad = false;               //!< AdamW, Adam
  double rate_decay = 0;  //!< Adagrad: step n has the learning rate divided by 1 + (n - 1) rate_decay
  double initial_accumulator = 0;  //!< Adagrad: initial sums of squares
  double alpha = 0.99;             //!< RmsProp: decay of the mean squares
  bool centered = false;           //!< RmsProp: subtract the squared mean gradient
};

//! The loss scale of Precision::Float16, and of models with float16 parameters. Gradients are computed for
//! the loss times the scale, and divided by it afterwards. If a gradient overflows on any rank, all ranks
//! skip the update and the scale is halved. It doubles after `growth_interval` updates without an overflow.
struct LossScaleOptions {
  double initial = 65536;  //!< a power of two
  std::int64_t growth_interval = 2000;
};

//! Whether a number is a power of two that losses can be multiplied by.
bool is_loss_scale(double scale);

//! Where and how often checkpoints are written, and whether to resume from one.
struct CheckpointOptions {
  std::optional<std::filesystem::path> directory{};  //!< by default, no checkpoints are written
  std::optional<std::int64_t> every{};               //!< interval in steps; by default only at the end
  int keep = 3;                                      //!< number of complete checkpoints to keep
  bool resume = false;
  bool allow_partial = false;  //!< resume even if tensors are missing, extra or have another shape
  StoragePolicy on_error = StoragePolicy::Stop;
};

//! Weights from which a new run starts, instead of the initial values of the model.
struct InitialWeights {
  std::filesystem::path path{};                   //!< what `checkpoint::open_weights` opens
  std::vector<checkpoint::RenameRule> renames{};  //!< from the names in the file to those of the model
  bool allow_partial = false;  //!< start even if tensors are missing, extra or have another shape
};

//! All options of a training run. It runs on the devices of the world (comm::InitOptions::device).
struct RunOptions {
  ParallelOptions parallel{};
  LearningRateOptions learning_rate{};
  OptimizerOptions optimizer{};
  ParameterGroupOptions parameters{};
  CheckpointOptions checkpoint{};
  //! Elements are cast to the dtypes of the model. A run that resumes takes its checkpoint instead. With this
  //! option, a run may resume without a checkpoint: it then starts from these weights.
  std::optional<InitialWeights> init{};
  std::int64_t steps = 100;
  std::int64_t batch = 16;            //!< examples per step, over all replicas
  std::int64_t accumulate = 1;        //!< parts of a batch that run through the pipeline one after the other
  std::optional<double> grad_clip{};  //!< maximum gradient norm
  Precision precision = Precision::Float32;
  ParameterDtype parameter_dtype = ParameterDtype::Auto;
  LossScaleOptions loss_scale{};
  std::uint64_t seed = 1;
  //! Passes whose rows are loaded ahead of their use, on a thread of its own; 0: load them on the thread of
  //! the run, when they are needed. A pass is a batch, or one of its accumulated parts.
  std::int64_t prefetch = 2;
  std::optional<std::int64_t> eval_every{};    //!< steps between validations
  std::optional<std::int64_t> eval_batches{};  //!< maximum number of batches of `batch` validation rows
  NanPolicy on_nan = NanPolicy::Stop;
  // Output files. Their directories must exist.
  //! Steps between log entries. The first and the last step of a run, and those with a validation, are always
  //! logged. The host reads losses and gradient norms only for logged steps; `on_nan` other than Skip is
  //! checked only then.
  std::int64_t log_every = 1;
  std::optional<std::filesystem::path> log_json{};  //!< JSON Lines, one object per logged step
  std::optional<std::filesystem::path> log_csv{};   //!< CSV, one row per logged step
  //! A directory for event files of TensorBoard, with the scalars of each logged step and validation.
  std::optional<std::filesystem::path> tensorboard{};
  std::optional<std::filesystem::path> timeline{};  //!< HTML page
  //! Passes the timeline of each logged step to Observer::on_timeline, which gathers it from the pipeline
  //! ranks.
  bool live_timeline = false;
  std::optional<std::filesystem::path> trace{};    //!< for Chrome and Perfetto
  std::optional<std::filesystem::path> profile{};  //!< cost file for `penstock plan`
};

//! Throws UsageError if the options are invalid or inconsistent.
void check(const RunOptions& options);

}  // namespace penstock::train
