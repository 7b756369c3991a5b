// Tensor parallelism compared with a dense run: losses, gradients, parameters after AdamW, and traffic.
#include "parallel/tensor/module_paths.h"
#include "parallel/training_result.h"
#include "support/error_message.h"
#include "support/mesh_ranks.h"
#include "support/models/separate_qkv_gpt.h"
#include "support/process_ranks.h"

#include <penstock/base/error.h>
#include <penstock/comm/world.h>
#include <penstock/parallel/input_reshard.h>
#include <penstock/parallel/loss_parallel.h>
#include <penstock/parallel/tensor_parallel.h>
#include <penstock/runtime/module_call.h>
#include <penstock/tensor/flatten.h>

#include <torch/torch.h>

namespace penstock::test {
namespace {

constexpr std::int64_t kRows = 4;

parallel::ParallelPlan block_plan(const std::string& prefix, bool sequence) {
  parallel::ParallelPlan plan;
  for (const char* name : {"q", "k", "v", "up"}) plan.push_back({prefix + name, parallel::ColwiseParallel()});
  for (const char* name : {"out", "down"}) plan.push_back({prefix + name, parallel::RowwiseParallel()});
  if (sequence) plan.push_back({prefix + "norm?", parallel::SequenceParallel()});
  return plan;
}

parallel::ParallelPlan gpt_plan(bool sequence) {
  parallel::ParallelPlan plan = block_plan("blocks.*.", sequence);
  plan.push_back({"token", parallel::RowwiseParallel()});
  plan.push_back({"head", parallel::ColwiseParallel()});
  if (sequence) plan.push_back({"norm", parallel::SequenceParallel()});
  return plan;
}

TrainingResult train(SeparateQkvGpt gpt) {
  TrainingResult result;
  torch::optim::AdamW optimizer(gpt->parameters(), torch::optim::AdamWOptions(0.01).weight_decay(0.1));
  for (int step = 0; step < 3; ++step) {
    const at::Tensor tokens =
        at::arange(kRows * (kTpLength + 1)).mul(7 + step).remainder(kTpVocabulary).view({kRows, -1});
    optimizer.zero_grad();
    const at::Tensor logits = gpt(tokens.narrow(1, 0, kTpLength));
    const at::Tensor loss =
        at::cross_entropy_loss(logits.flatten(0, 1), tokens.narrow(1, 1, kTpLength).flatten());
    loss.backward();
    result.losses.push_back(full_copy(loss).item<double>());
    if (step == 0) {
      for (const at::Tensor& parameter : gpt->parameters())
        result.gradients.push_back(full_copy(parameter.grad()));
    }
    torch::nn::utils::clip_grad_norm_(gpt->parameters(), 1.0);
    optimizer.step();
  }
  for (const at::Tensor& parameter : gpt->parameters()) result.parameters.push_back(full_copy(parameter));
  return result;
}

TEST(ParallelTensorParallel, MatchesDenseTraining) {
  const TrainingResult alone = train(SeparateQkvGpt());
  for (const std::int64_t ranks : {2, 4}) {
    for (const bool sequence : {false, true}) {
      on_mesh({ranks}, [&](const tensor::DeviceMesh& mesh) {
        SeparateQkvGpt gpt;
        parallel::parallelize_module(*gpt, mesh, gpt_plan(sequence));
        EXPECT_LT(distance(train(gpt), alone), 1e-5) << ranks << (sequence ? " sequence" : "");
      });
    }
  }
}

const test::RankFunction over_gloo("tensor_parallel", [] {
  comm::World world = comm::init();
  const tensor::DeviceMesh mesh(world.group(), {world.size()}, {"tp"});
  const TrainingResult alone = train(SeparateQkvGpt());
  for (const bool sequence : {false, true}) {
    SeparateQkvGpt gpt;
    parallel::parallelize_module(*gpt, mesh, gpt_plan(sequence));
    const double far = distance(train(gpt), alone);
    if (!(far < 1e-5)) throw std::runtime_error("differs by " + std::to_string(far));
  }
  return 0;
});

TEST(ParallelTensorParallel, MatchesDenseTrainingOverGloo) {
  const test::RanksOutcome outcome = test::run_process_ranks("tensor_parallel", 2);
  ASSERT_TRUE(outcome.result.ok) << outcome.text();
}

TEST(ParallelTensorParallel, BlockNeedsTwoAllReducesPerPass) {
  for (const std::int64_t ranks : {2, 4}) {
    on_mesh({ranks}, [&](const tensor::DeviceMesh& mesh) {
      const std::int64_t bytes = kRows * kTpLength * kTpWidth * 4;
      SeparateQkvBlock block;
      parallel::parallelize_module(*block, mesh, block_plan("", false));
      const at::Tensor x =
          distribute_tensor(numbers({kRows, kTpLength, kTpWidth}, 1), mesh, {tensor::Replicate()})
              .set_requires_grad(true);
      tensor::reset_traffic();
      const at::Tensor y = block(x);
      EXPECT_EQ(tensor::placements_of(y), tensor::Placements{tensor::Replicate()});
      EXPECT_EQ(tensor::traffic().all_reduces, 2);
      EXPECT_EQ(tensor::traffic().calls(), 2);
      EXPECT_EQ(tensor::traffic().bytes, 2 * 2 * (ranks - 1) * bytes / ranks);
      tensor::reset_traffic();
      y.pow(2).sum().backward();
      EXPECT_EQ(tensor::traffic().all_reduces, 2);
      EXPECT_EQ(tensor::traffic().calls(), 2);
      EXPECT_EQ(tensor::traffic().bytes, 2 * 2 * (ranks - 1) * bytes / ranks);
    });
  }
}

TEST(ParallelTensorParallel, SequenceParallelSendsSameBytes) {
  for (const std::int64_t ranks : {2, 4}) {
    on_mesh({ranks}, [&](const tensor::DeviceMesh& mesh) {
      const std::int64_t bytes = kRows * kTpLength * kTpWidth * 4;
      SeparateQkvBlock block;
      parallel::parallelize_module(*block, mesh, block_plan("", true));
      const at::Tensor x =
          distribute_tensor(numbers({kRows, kTpLength, kTpWidth}, 1), mesh, {tensor::Shard(1)})
              .set_requires_grad(true);
      tensor::reset_traffic();
      const at::Tensor y = block(x);
      EXPECT_EQ(tensor::placements_of(y), tensor::Placements{tensor::Shard(1)});
      EXPECT_EQ(tensor::traffic().all_gathers, 2);
      EXPECT_EQ(tensor::traffic().reduce_scatters, 2);
      EXPECT_EQ(tensor::traffic().calls(), 4);
      EXPECT_EQ(tensor::traffic().bytes, 2 * 2 * (ranks - 1) * bytes / ranks);
      tensor::reset_traffic();
      y.pow(2).sum().backward();
      EXPECT_EQ(tensor::traffic().all_gathers, 2);
      EXPECT_EQ(tensor::traffic().reduce_scatters, 2);
      // Weights and biases of the two norms: their gradients are sums over the sequence.
      EXPECT_EQ(tensor::traffic().all_reduces, 4);
    });
  }
}

TEST(ParallelLossParallel, KeepsClassesSharded) {
  on_mesh({4}, [](const tensor::DeviceMesh& mesh) {
    const at::Tensor logits = numbers({6, kTpVocabulary}, 1),
                     targets = at::tensor({3, 0, 12, 2, 7, 1}, at::kLong);
    const at::Tensor dense = logits.clone().set_requires_grad(true);
    const at::Tensor want = at::cross_entropy_loss(dense, targets);
    want.backward();
    const at::Tensor sharded = distribute_tensor(dense, mesh, {tensor::Shard(1)}, false);
    const parallel::LossParallel kept;
    tensor::reset_traffic();
    const at::Tensor loss = at::cross_entropy_loss(sharded, targets);
    loss.backward();
    EXPECT_EQ(tensor::traffic().all_gathers, 0);
    EXPECT_LE(tensor::traffic().bytes,
              3 * 2 * 6 * 4);  // maximum, sum and gradient for each of 6 rows
    EXPECT_NEAR(tensor::full_tensor(loss).item<double>(), want.item<double>(), 1e-6);
    EXPECT_LT(difference(tensor::full_tensor(sharded.grad()), dense.grad()), 1e-6);
    EXPECT_ERROR(at::cross_entropy_loss(distribute_tensor(logits, mesh, {tensor::Shard(0)}, false), targets),
                 UsageError, "not sharded along the class dim");
  });
}

TEST(ParallelLossParallel, MatchesDenseGradientWithIgnoredLabels) {
  on_mesh({4}, [](const tensor::DeviceMesh& mesh) {
    for (const at::Tensor& targets :
         {at::tensor({3, -100, 12, -100}, at::kLong), at::full({4}, -100, at::kLong)}) {
      const at::Tensor dense = numbers({4, kTpVocabulary}, 1).set_requires_grad(true);
      at::cross_entropy_loss(dense, targets).backward();
      const at::Tensor sharded = distribute_tensor(dense, mesh, {tensor::Shard(1)}, false);
      const parallel::LossParallel kept;
      at::cross_entropy_loss(sharded, targets).backward();
      EXPECT_LT(difference(tensor::full_tensor(sharded.grad()), dense.grad()), 1e-6) << targets;
    }
  });
}

TEST(ParallelInputReshard, KeepsShardsAndSameGradients) {
  on_mesh({2}, [](const tensor::DeviceMesh& mesh) {
    const auto run = [&](bool reshard) {
      SeparateQkvBlock block;
      const torch::NoGradGuard no_grad;
      unsigned seed = 0;
      for (at::Tensor& parameter : block->parameters())
        parameter.copy_(numbers(parameter.sizes(), ++seed) * 0.3);
      parallel::parallelize_module(*block, mesh, block_plan("", false));
      const at::AutoGradMode grad(true);
      const at::Tensor x =
          distribute_tensor(numbers({kRows, kTpLength, kTpWidth}, 1), mesh, {tensor::Replicate()});
      std::unique_ptr<parallel::InputReshard> scope;
      if (reshard) scope = std::make_unique<parallel::InputReshard>(mesh);
      const at::Tensor y = block(x * 1);
      scope.reset();
      tensor::reset_traffic();
      y.pow(2).sum().backward();
      const auto gathers = tensor::traffic().all_gathers;
      std::vector<at::Tensor> gradients;
      for (const at::Tensor& parameter : block->parameters())
        gradients.push_back(full_copy(parameter.grad()));
      return std::pair(gradients, gathers);
    };
    const auto [plain, none] = run(false);
    const auto [sharded, gathers] = run(true);
    EXPECT_EQ(none, 0);
    EXPECT_GT(gathers, 4);
    for (std::size_t i = 0; i < plain.size(); ++i) EXPECT_LT(difference(plain[i], sharded[i]), 1e-6) << i;
  });
}

TEST(ParallelFlatDTensor, RoundTripsWithGradient) {
  on_mesh({2}, [](const tensor::DeviceMesh& mesh) {
    const at::Tensor full_parameter = numbers({5, 3}, 1).set_requires_grad(true);
    const tensor::FlatDTensor flat =
        tensor::flatten_dtensor(distribute_tensor(full_parameter, mesh, {tensor::Shard(0)}, false));
    ASSERT_TRUE(flat.spec);
    EXPECT_TRUE(flat.local.is_leaf() && flat.local.requires_grad());
    const at::Tensor again = unflatten_dtensor(flat.local, *flat.spec);
    EXPECT_LT(difference(full_copy(again), full_parameter.detach()), 1e-7);
    again.pow(2).sum().backward();
    EXPECT_LT(difference(flat.local.grad(), flat.local.detach() * 2), 1e-6);
    EXPECT_EQ(tensor::synced_gradient(again).sizes(), flat.local.sizes());
    EXPECT_FALSE(tensor::flatten_dtensor(full_parameter).spec);
  });
}

TEST(ParallelTensorParallel, PreparesCalls) {
  on_mesh({2}, [](const tensor::DeviceMesh& mesh) {
    SeparateQkvGpt gpt;
    parallel::ParallelPlan plan = gpt_plan(false);
    plan.push_back({"blocks.0", parallel::PrepareModuleInput{{tensor::Shard(1)}}});
    plan.push_back(
        {"blocks.1", parallel::PrepareModuleInputOutput{{{tensor::Replicate()}}, {tensor::Shard(1), true}}});
    parallel::parallelize_module(*gpt, mesh, plan);
    const at::Tensor x =
        runtime::call(gpt->blocks->ptr<SeparateQkvBlockImpl>(0), numbers({kRows, kTpLength, kTpWidth}, 2));
    EXPECT_EQ(tensor::placements_of(x), tensor::Placements{tensor::Shard(1)});
    const at::Tensor y = runtime::call(gpt->blocks->ptr<SeparateQkvBlockImpl>(1), x);
    EXPECT_FALSE(tensor::is_dtensor(y));
    EXPECT_EQ(y.size(1), kTpLength / 2);
  });
}

//! Returns its input in several structures.
struct EchoImpl : torch::nn::Module {
  std::tuple<at::Tensor, at::Tensor> forward(const at::Tensor& a, const at::Tensor& b) { return {a, b}; }
};
TORCH_MODULE(Echo);

struct ListImpl : torch::nn::Module {
  std::vector<at::Tensor> forward(const at::Tensor& a) { return {a, a * 2}; }
};
TORCH_MODULE(List);

TEST(ParallelTensorParallel, PreparesPlainOutputsAndTuples) {
  on_mesh({2}, [](const tensor::DeviceMesh& mesh) {
    const at::Tensor a = numbers({4, 6}, 1), b = numbers({4, 6}, 2);
    Echo echo;
    parallel::parallelize_module(*echo, mesh,
                                 {{"", parallel::PrepareModuleOutput{{tensor::Shard(0), tensor::Shard(1)}}}});
    const auto [x, y] = runtime::call(echo, a, b);
    ASSERT_TRUE(tensor::is_dtensor(x) && tensor::is_dtensor(y));
    EXPECT_EQ(tensor::placements_of(x), tensor::Placements{tensor::Shard(0)});
    EXPECT_EQ(tensor::placements_of(y), tensor::Placements{tensor::Shard(1)});
    EXPECT_EQ(difference(tensor::full_tensor(y), b), 0);

    // A plain tensor is interpreted as `assumed`: here as this rank's contribution to a sum.
    Echo sums;
    parallel::parallelize_module(
        *sums, mesh, {{"", parallel::PrepareModuleOutput{tensor::Replicate(), true, tensor::Partial()}}});
    const auto [u, v] = runtime::call(sums, a, b);
    EXPECT_FALSE(tensor::is_dtensor(u));
    EXPECT_LT(difference(u, a * 2), 1e-6);
    EXPECT_LT(difference(v, b * 2), 1e-6);

    List list;
    parallel::parallelize_module(*list, mesh, {{"", parallel::PrepareModuleOutput{tensor::Shard(0)}}});
    const std::vector<at::Tensor> both = runtime::call(list, a);
    ASSERT_TRUE(tensor::is_dtensor(both[0]) && tensor::is_dtensor(both[1]));
    EXPECT_LT(difference(tensor::full_tensor(both[1]), a * 2), 1e-6);
  });
}

TEST(ParallelTensorParallel, RejectsListsOfWrongLength) {
  on_mesh({2}, [](const tensor::DeviceMesh& mesh) {
    const at::Tensor a = numbers({4, 6}, 1);
    const std::vector<parallel::ParallelStyle> wrong{
        parallel::PrepareModuleInput{{tensor::Shard(0)}},
        parallel::PrepareModuleInput{{tensor::Shard(0), tensor::Shard(0), tensor::Shard(0)}},
        parallel::PrepareModuleInput{{tensor::Shard(0), tensor::Shard(0)}, {tensor::Replicate()}},
        parallel::PrepareModuleOutput{{tensor::Shard(0)}},
        parallel::PrepareModuleOutput{{tensor::Shard(0), tensor::Shard(0), tensor::Shard(0)}}};
    for (const parallel::ParallelStyle& style : wrong) {
      Echo echo;
      parallel::parallelize_module(*echo, mesh, {{"", style}});
      EXPECT_ERROR(runtime::call(echo, a, a), UsageError, " entries in `");
    }
    Echo fits;
    parallel::parallelize_module(*fits, mesh,
                                 {{"", parallel::PrepareModuleInput{{tensor::Shard(0), std::nullopt}}}});
    const auto [x, y] = runtime::call(fits, a, a);
    EXPECT_TRUE(tensor::is_dtensor(x) && !tensor::is_dtensor(y));
  });
}

//! Accepts a distributed parameter, except the one named `second`.
struct FussyImpl : torch::nn::Module, parallel::ExchangeableParameters {
  FussyImpl()
      : first(register_parameter("first", at::ones({4}))),
        second(register_parameter("second", at::ones({4}))) {}
  void exchange_parameter(const std::string& name, const at::Tensor& distributed) override {
    if (name == "second" && tensor::is_dtensor(distributed)) throw std::runtime_error("not this one");
    (name == "first" ? first : second) = distributed;
  }
  at::Tensor first, second;
};
TORCH_MODULE(Fussy);

TEST(ParallelTensorParallel, FailedPlanChangesNothing) {
  on_mesh({2}, [](const tensor::DeviceMesh& mesh) {
    const auto unchanged = [](const torch::nn::Module& module) {
      for (const auto& item : module.named_parameters()) {
        EXPECT_FALSE(tensor::is_dtensor(item.value())) << item.key();
      }
    };
    SeparateQkvGpt gpt;
    // A later path without a matching module, an incompatible style, and a module that is named twice.
    const std::vector<std::pair<parallel::ParallelPlan, const char*>> wrong{
        {{{"blocks.0", parallel::PrepareModuleOutput{tensor::Shard(1)}},
          {"blocks.*.up", parallel::ColwiseParallel()},
          {"blocks.9", parallel::ColwiseParallel()}},
         "no module has the path 'blocks.9'"},
        {{{"blocks.*.up", parallel::ColwiseParallel()}, {"norm", parallel::RowwiseParallel()}},
         "RowwiseParallel does not fit module 'norm'"},
        {{{"blocks.*.up", parallel::ColwiseParallel()}, {"blocks.0.up", parallel::RowwiseParallel()}},
         "is already distributed"}};
    for (const auto& plan_and_error : wrong) {
      EXPECT_ERROR(parallel::parallelize_module(*gpt, mesh, plan_and_error.first), UsageError,
                   plan_and_error.second);
      unchanged(*gpt);
      EXPECT_FALSE(tensor::is_dtensor(gpt->blocks->ptr<SeparateQkvBlockImpl>(0)->up->weight));
      EXPECT_FALSE(tensor::is_dtensor(runtime::call(gpt->blocks->ptr<SeparateQkvBlockImpl>(0),
                                                    numbers({kRows, kTpLength, kTpWidth}, 2))));
    }
    Fussy fussy;
    EXPECT_THROW(
        parallel::parallelize_module(*fussy, mesh,
                                     {{"", parallel::DistributeParameters{{{"first", tensor::Shard(0)},
                                                                           {"second", tensor::Shard(0)}}}}}),
        std::runtime_error);
    unchanged(*fussy);
    EXPECT_FALSE(tensor::is_dtensor(fussy->first) || tensor::is_dtensor(fussy->second));
  });
}

TEST(ParallelTensorParallel, RejectsMismatchedPlans) {
  on_mesh({2}, [](const tensor::DeviceMesh& mesh) {
    SeparateQkvGpt gpt;
    EXPECT_ERROR(parallel::parallelize_module(*gpt, mesh, {{"blocks.0.uq", parallel::ColwiseParallel()}}),
                 UsageError, "no module has the path 'blocks.0.uq'");
    EXPECT_ERROR(parallel::parallelize_module(*gpt, mesh, {{"norm", parallel::ColwiseParallel()}}),
                 UsageError, "ColwiseParallel does not fit module 'norm'");
    EXPECT_ERROR(parallel::parallelize_module(
                     *gpt, mesh, {{"", parallel::DistributeParameters{{{"position", tensor::Shard(0)}}}}}),
                 UsageError, "holds handles to its parameters that cannot be replaced");
  });
}

TEST(ParallelModulePaths, MatchComponentWise) {
  EXPECT_TRUE(parallel::path_fits("blocks.*.up", "blocks.12.up"));
  EXPECT_TRUE(parallel::path_fits("*.n?rm*", "blocks.norm1"));
  EXPECT_FALSE(parallel::path_fits("blocks.*", "blocks.1.up"));
  EXPECT_FALSE(parallel::path_fits("blocks.?", "blocks.12"));
  EXPECT_FALSE(parallel::path_fits("up", "blocks.0.up"));
}

}  // namespace
}  // namespace penstock::test
