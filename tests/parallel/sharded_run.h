// Training of the small GPT with sharded data parallelism, compared with a dense run.
#pragma once

#include "parallel/dense_gpt.h"
#include "support/check.h"

#include <penstock/parallel/sharded.h>
#include <penstock/runtime/module_call.h>

#include <memory>
#include <string>
#include <vector>

namespace penstock::test {

inline std::vector<std::shared_ptr<torch::nn::Module>> blocks_of(const SmallGpt& model) {
  std::vector<std::shared_ptr<torch::nn::Module>> units;
  for (const auto& block : *model->blocks) units.push_back(block);
  return units;
}

using parallel::ParameterStorage;
constexpr ParameterStorage kShardedStorages[] = {ParameterStorage::Shard, ParameterStorage::ShardGradients,
                                                 ParameterStorage::ShardOptimizer};

// The mean of a value over the world.
inline at::Tensor mean_of(comm::World& world, const at::Tensor& loss) {
  const at::Tensor all = loss.detach().to(at::kFloat).clone();
  world.group().all_reduce(all, comm::ReduceOp::Avg);
  return all;
}

inline void expect_dense(comm::World& world, const comm::Group& group, const parallel::ShardOptions& options,
                         Variant variant, const DenseGpt& dense, int parts) {
  SmallGpt model(variant, 2,
                 world.rank().value == 0 ? 1 : 99);  // all ranks but the first start with other values
  parallel::Sharded sharded = fully_shard(model, group, options, blocks_of(model));
  torch::optim::AdamW optimizer = adamw(sharded.parameters());
  for (int step = 0; step < kGptSteps; ++step) {
    const Tokens batch = tokens_of(kGptRows, step).shard(world.rank().value, world.size());
    optimizer.zero_grad();
    at::Tensor sum = at::zeros({});
    for (int part = 0; part < parts; ++part) {
      const Tokens own = batch.shard(part, parts);
      const auto backward = [&] {
        const at::Tensor loss = loss_of(runtime::call(model, own.inputs), own.targets) / parts;
        loss.backward();
        sum += loss.detach();
      };
      const Traffic traffic(world);
      if (part + 1 < parts && step == 1) {  // the other modes reduce in every backward
        const auto no_sync = sharded.no_sync();
        backward();
        CHECK_SAME(traffic.of("reduce_scatter").count, 0);
      } else {
        backward();
      }
    }
    const std::string when = std::string(text(variant)) + ", step " + std::to_string(step) + ": ";
    expect_near(when + "loss", mean_of(world, sum), dense.losses[static_cast<std::size_t>(step)]);
    if (step == 0) expect_near(when + "gradient of", sharded.gather_gradients(), dense.gradients);
    if (options.storage == parallel::ParameterStorage::Shard) {
      for (const at::Tensor& parameter : model->parameters()) CHECK_SAME(parameter.numel(), 0);
    }
    optimizer.step();
  }
  expect_near(std::string(text(variant)) + ": at the end", sharded.gather_parameters(), dense.parameters);
}

inline std::int64_t elements_of(const std::vector<at::Tensor>& parameters) {
  std::int64_t sum = 0;
  for (const at::Tensor& parameter : parameters) sum += parameter.numel();
  return sum;
}

}  // namespace penstock::test
