// Names and validation of the options of a run.
#include "base/option_ranges.h"
#include "base/text.h"
#include "train/model/assembly.h"

#include <penstock/base/error.h>
#include <penstock/train/options.h>

#include <cmath>

namespace penstock::train {
namespace {

void fraction(double value, const char* option, bool may_be_one) {
  if (!(value >= 0) || value > 1 || (value == 1 && !may_be_one))
    throw UsageError(str_cat(option, " must be at least 0 and ", (may_be_one ? "at most 1" : "less than 1")),
                     {}, "for example 0.9");
}

}  // namespace

std::string_view to_string(OptimizerKind kind) {
  return kind == OptimizerKind::Sgd ? "sgd" : "adamw";
}

std::string_view to_string(LossKind kind) {
  return kind == LossKind::Mse ? "mse" : "cross_entropy";
}

std::string_view to_string(LearningRateKind kind) {
  return kind == LearningRateKind::Cosine ? "cosine" : "constant";
}

std::string_view to_string(Sharding sharding) {
  return sharding == Sharding::Full ? "full" : "none";
}

std::string_view to_string(Precision precision) {
  return precision == Precision::Bfloat16 ? "bf16" : "float32";
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
  if (options.checkpoint.every) check_at_least(*options.checkpoint.every, 1, "checkpoint.every");
  check_at_least(options.checkpoint.keep, 1, "checkpoint.keep");
  if (options.eval_every) check_at_least(*options.eval_every, 1, "eval_every");
  if (options.eval_batches) check_at_least(*options.eval_batches, 1, "eval_batches");
  check_at_least(options.learning_rate.warmup, 0, "learning_rate.warmup");
  check_not_negative(options.learning_rate.peak, "learning_rate.peak");
  fraction(options.learning_rate.final_fraction, "learning_rate.final_fraction", true);
  if (options.grad_clip && !(*options.grad_clip > 0 && std::isfinite(*options.grad_clip)))
    throw UsageError("grad_clip must be a number greater than 0", {},
                     "give a maximum norm such as 1, or std::nullopt to disable clipping");
  const OptimizerOptions& optimizer = options.optimizer;
  check_not_negative(optimizer.weight_decay, "optimizer.weight_decay");
  check_not_negative(optimizer.momentum, "optimizer.momentum");
  check_not_negative(optimizer.epsilon, "optimizer.epsilon");
  fraction(optimizer.beta1, "optimizer.beta1", false);
  fraction(optimizer.beta2, "optimizer.beta2", false);
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
  if (parallel.sharding == Sharding::Full && parallel.dp == 1)
    throw UsageError("full sharding distributes parameters over replicas, but there is only one", {},
                     "use 2 or more data-parallel ranks (dp), or no sharding");
  // Throws if the schedule is unknown, cannot train, or does not support these counts.
  num_stages(parallel);
}

}  // namespace penstock::train
