// The search for the first output that is not finite.
#include "train/not_finite.h"

#include <ATen/ops/tensor.h>

#include <limits>
#include <sstream>

namespace penstock::train {

Error find_not_finite(const Mesh& mesh, const Assembly& assembly, const Batch& batch, double loss,
                      double grad_norm) {
  assembly.watch->finite = true;
  for (const auto& [index, stage] : assembly.stages) stage->forget();
  // In training mode, in which it happened.
  assembly.pipeline->eval(
      {.args = batch.args, .kwargs = batch.kwargs, .target = batch.target, .keep_mode = true});
  assembly.watch->finite = false;
  // The order of a forward: microbatches one after the other, each through its stages.
  const std::int64_t none = std::numeric_limits<std::int64_t>::max();
  std::int64_t first = none;
  const int stages = assembly.pipeline->program().stages();
  for (const auto& [index, stage] : assembly.stages)
    if (const auto bad = stage->first_bad())
      first = std::min(first, static_cast<std::int64_t>(*bad) * stages + index);
  const at::Tensor least = at::tensor({first}, at::kLong);
  if (mesh.world.size() > 1) mesh.world.all_reduce(least, ReduceOp::Min);
  first = least.item<std::int64_t>();
  std::ostringstream text;
  text << "the loss is " << loss << " and the norm of the gradients " << grad_norm;
  const std::string hint =
      "a smaller --lr, --warmup or --grad-clip; --on-nan skip goes on without such steps";
  if (first == none)
    return Error(text.str() + ": every forward is finite, so the loss or a backward made it", {}, hint);
  return Error(text.str() + ": first seen in the output",
               {.stage = StageId(first % stages), .microbatch = MicrobatchId(first / stages)}, hint);
}

}  // namespace penstock::train
