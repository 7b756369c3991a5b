// Names and validation of the options of a run.
#include "base/option_ranges.h"
#include "base/text.h"
#include "train/model/assembly.h"

#include <penstock/base/error.h>
#include <penstock/train/options.h>
#include <penstock/train/trainer.h>

#include <cmath>

namespace penstock::train {
namespace {

void check_below_one(double value, const char* option) {
  if (!(value >= 0 && value < 1))
    throw UsageError(str_cat(option, " must be at least 0 and less than 1"), {}, "for example 0.9");
}

void check_optimizer(const OptimizerOptions& options) {
  check_not_negative(options.weight_decay, "optimizer.weight_decay");
  check_not_negative(options.momentum, "optimizer.momentum");
  check_not_negative(options.epsilon.value_or(0), "optimizer.epsilon");
  check_not_negative(options.rate_decay, "optimizer.rate_decay");
  check_not_negative(options.initial_accumulator, "optimizer.initial_accumulator");
  check_not_negative(options.alpha, "optimizer.alpha");
  check_below_one(options.beta1, "optimizer.beta1");
  check_below_one(options.beta2, "optimizer.beta2");
  if (!std::isfinite(options.dampening))
    throw UsageError("optimizer.dampening must be a finite number", {}, "for example 0.1");
  const OptimizerOptions standard;
  const bool sgd = options.kind == OptimizerKind::Sgd, rms = options.kind == OptimizerKind::RmsProp,
             adagrad = options.kind == OptimizerKind::Adagrad,
             adam = options.kind == OptimizerKind::Adam || options.kind == OptimizerKind::AdamW;
  const auto applies = [&](bool has, bool is_default, const char* name) {
    if (!has && !is_default)
      throw UsageError(str_cat("optimizer.", name, " does not apply to ", to_string(options.kind)), {},
                       "keep its default, or use another optimizer");
  };
  applies(sgd || rms, options.momentum == standard.momentum, "momentum");
  applies(sgd, options.dampening == standard.dampening, "dampening");
  applies(sgd, !options.nesterov, "nesterov");
  applies(adam, options.beta1 == standard.beta1, "beta1");
  applies(adam, options.beta2 == standard.beta2, "beta2");
  applies(adam, !options.amsgrad, "amsgrad");
  applies(!sgd, !options.epsilon, "epsilon");
  applies(adagrad, options.rate_decay == standard.rate_decay, "rate_decay");
  applies(adagrad, options.initial_accumulator == standard.initial_accumulator, "initial_accumulator");
  applies(rms, options.alpha == standard.alpha, "alpha");
  applies(rms, !options.centered, "centered");
  if (options.nesterov && (options.momentum == 0 || options.dampening != 0))
    throw UsageError("optimizer.nesterov needs a momentum and no dampening", {},
                     "set optimizer.momentum, for example to 0.9, and optimizer.dampening to 0");
}

}  // namespace

std::string_view to_string(OptimizerKind kind) {
  switch (kind) {
    case OptimizerKind::Sgd:
      return "sgd";
    case OptimizerKind::AdamW:
      return "adamw";
    case OptimizerKind::Adam:
      return "adam";
    case OptimizerKind::Adagrad:
      return "adagrad";
    case OptimizerKind::RmsProp:
      return "rmsprop";
  }
  return "";
}

std::string_view to_string(LossKind kind) {
  switch (kind) {
    case LossKind::CrossEntropy:
      return "cross_entropy";
    case LossKind::Mse:
      return "mse";
    case LossKind::Bce:
      return "bce";
    case LossKind::L1:
      return "l1";
  }
  return "";
}

std::string_view to_string(LossMean mean) {
  switch (mean) {
    case LossMean::Auto:
      return "auto";
    case LossMean::Rows:
      return "rows";
    case LossMean::Labels:
      return "labels";
    case LossMean::NextLabels:
      return "next_labels";
  }
  return "";
}

std::string_view to_string(Sharding sharding) {
  switch (sharding) {
    case Sharding::None:
      return "none";
    case Sharding::Optimizer:
      return "optimizer";
    case Sharding::Gradients:
      return "gradients";
    case Sharding::Full:
      return "full";
  }
  return "";
}

std::string_view to_string(Precision precision) {
  switch (precision) {
    case Precision::Float32:
      return "float32";
    case Precision::Bfloat16:
      return "bf16";
    case Precision::Float16:
      return "fp16";
  }
  return "";
}

std::string_view to_string(ParameterDtype dtype) {
  return dtype == ParameterDtype::Bfloat16 ? "bf16" : "auto";
}

std::string_view to_string(RunPhase phase) {
  switch (phase) {
    case RunPhase::Setup:
      return "setup";
    case RunPhase::Step:
      return "step";
    case RunPhase::Update:
      return "update";
    case RunPhase::Checkpoint:
      return "checkpoint";
    case RunPhase::End:
      return "end";
  }
  return "";
}

std::string_view to_string(NanPolicy policy) {
  switch (policy) {
    case NanPolicy::Stop:
      return "stop";
    case NanPolicy::Skip:
      return "skip";
    case NanPolicy::Ignore:
      return "ignore";
  }
  return "";
}

std::string_view to_string(StoragePolicy policy) {
  return policy == StoragePolicy::Warn ? "warn" : "stop";
}

bool is_loss_scale(double scale) {
  int exponent = 0;
  return scale >= 1 && scale <= 0x1p127 && std::frexp(scale, &exponent) == 0.5;
}

void check(const RunOptions& options) {
  const ParallelOptions& parallel = options.parallel;
  check_at_least(parallel.pp, 1, "pp");
  check_at_least(parallel.tp, 1, "tp");
  check_at_least(parallel.dp, 1, "dp");
  if (parallel.stages_per_rank) check_at_least(*parallel.stages_per_rank, 1, "stages_per_rank");
  check_at_least(parallel.microbatches, 1, "microbatches");
  check_at_least(options.steps, 1, "steps");
  check_at_least(options.batch, 1, "batch");
  check_at_least(options.accumulate, 1, "accumulate");
  check_at_least(options.log_every, 1, "log_every");
  check_at_least(options.prefetch, 0, "prefetch");
  if (options.checkpoint.every) check_at_least(*options.checkpoint.every, 1, "checkpoint.every");
  check_at_least(options.checkpoint.keep, 1, "checkpoint.keep");
  if (options.eval_every) check_at_least(*options.eval_every, 1, "eval_every");
  if (options.eval_batches) check_at_least(*options.eval_batches, 1, "eval_batches");
  const LearningRate rate(options.learning_rate, options.steps);  // throws if the options are invalid
  if (options.grad_clip && !(*options.grad_clip > 0 && std::isfinite(*options.grad_clip)))
    throw UsageError("grad_clip must be a number greater than 0", {},
                     "give a maximum norm such as 1, or std::nullopt to disable clipping");
  check_optimizer(options.optimizer);
  if (options.parameter_dtype == ParameterDtype::Bfloat16 && options.precision == Precision::Float16)
    throw UsageError("parameters in bfloat16 cannot be combined with autocast to float16", {},
                     "set precision to bf16 or float32, or parameter_dtype to auto");
  if (!is_loss_scale(options.loss_scale.initial))
    throw UsageError("loss_scale.initial must be a power of two of at least 1", {}, "for example 65536");
  check_at_least(options.loss_scale.growth_interval, 1, "loss_scale.growth_interval");
  const std::int64_t parts = parallel.dp * options.accumulate;
  if (options.batch % parts != 0)
    throw UsageError(str_cat("a batch of ", options.batch, " cannot be split evenly over ", parallel.dp,
                             " replicas x ", options.accumulate, " accumulated parts"),
                     {}, str_cat("make batch a multiple of ", parts));
  if (options.batch / parts < parallel.microbatches)
    throw UsageError(
        str_cat("a batch of ", options.batch / parts, " examples", (parts > 1 ? " per replica and part" : ""),
                " is too small for ", parallel.microbatches, " microbatches"),
        {}, "use a larger batch, or fewer microbatches");
  if (parallel.sharding != Sharding::None && parallel.dp == 1)
    throw UsageError("sharding distributes the state of training over replicas, but there is only one", {},
                     "use 2 or more data-parallel ranks (dp), or no sharding");
  if (parallel.recompute && !parallel.recompute_modules.empty())
    throw UsageError("recompute and recompute_modules exclude each other", {},
                     "recompute whole stages, or the modules that patterns select");
  // Throws if the schedule is unknown, cannot train, or does not support these counts.
  num_stages(parallel);
}

}  // namespace penstock::train
