// Validates the options of a run.
#include "base/text.h"
#include "train/model/assembly.h"

#include <penstock/base/error.h>
#include <penstock/train/options.h>

#include <cmath>

namespace penstock::train {
namespace {

void at_least(std::int64_t value, std::int64_t least, const char* option) {
  if (value < least)
    throw UsageError(
        std::string(option) + " must be at least " + std::to_string(least) + ", not " + std::to_string(value),
        {}, "use " + std::to_string(least) + " or more");
}

void not_negative(double value, const char* option) {
  if (!(value >= 0) || std::isinf(value))
    throw UsageError(std::string(option) + " must be a number of 0 or more", {},
                     "give a number that is not negative");
}

}  // namespace

void check(const RunOptions& options) {
  const ParallelOptions& parallel = options.parallel;
  at_least(parallel.pp, 1, "pp");
  at_least(parallel.tp, 1, "tp");
  at_least(parallel.dp, 1, "dp");
  at_least(parallel.stages_per_rank, 0, "stages_per_rank");
  at_least(parallel.microbatches, 1, "microbatches");
  at_least(options.steps, 1, "steps");
  at_least(options.batch, 1, "batch");
  at_least(options.accumulate, 1, "accumulate");
  at_least(options.checkpoint.every, 0, "checkpoint_every");
  at_least(options.checkpoint.keep, 1, "checkpoint_keep");
  at_least(options.eval_every, 0, "eval_every");
  at_least(options.eval_batches, 0, "eval_batches");
  at_least(options.rate.warmup, 0, "warmup");
  not_negative(options.rate.rate, "lr");
  not_negative(options.grad_clip, "grad_clip");
  not_negative(options.optimizer.weight_decay, "weight_decay");
  not_negative(options.optimizer.momentum, "momentum");
  const std::int64_t parts = parallel.dp * options.accumulate;
  if (options.batch % parts != 0)
    throw UsageError("a batch of " + std::to_string(options.batch) + " cannot be split evenly over " +
                         std::to_string(parallel.dp) + " replicas x " + std::to_string(options.accumulate) +
                         " accumulated parts",
                     {}, "make batch a multiple of " + std::to_string(parts));
  if (options.batch / parts < parallel.microbatches)
    throw UsageError("a batch of " + std::to_string(options.batch / parts) + " examples" +
                         (parts > 1 ? " per replica and part" : "") + " is too small for " +
                         std::to_string(parallel.microbatches) + " microbatches",
                     {}, "use a larger batch, or fewer microbatches");
  if (parallel.sharding == Sharding::Full && parallel.dp == 1)
    throw UsageError("full sharding distributes parameters over replicas, but there is only one", {},
                     "use 2 or more data-parallel ranks (dp), or no sharding");
  // Throws if the schedule is unknown, cannot train, or does not support these counts.
  if (to_lower(parallel.schedule) != "auto") checked_shape(parallel, parallel.schedule);
}

}  // namespace penstock::train
