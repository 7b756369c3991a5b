// Data, sharded, tensor and pipeline parallelism of models loaded from archives, compared with a dense run in
// one process.
#include "support/check.h"
#include "support/error_message.h"
#include "support/mesh_ranks.h"

#include <penstock/load_module.h>
#include <penstock/penstock.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <random>

namespace penstock::test {
namespace {

using testing::HasSubstr;

const std::string kTransformer = PENSTOCK_SOURCE_DIR "/tests/parallel/archives/transformer.pt2";
constexpr std::int64_t kRows = 8, kLength = 6, kVocabulary = 17;
constexpr int kSteps = 3;

//! The batches of a run, drawn from a printed seed.
struct Batches {
  Batches() {
    const auto seed = std::random_device{}() % 100000;
    std::printf("seed of the batches: %u\n", seed);
    auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
    tokens = torch::randint(kVocabulary, {kSteps, kRows, kLength}, generator, torch::kLong);
    target = torch::randint(kVocabulary, {kSteps, kRows, kLength}, generator, torch::kLong);
  }
  at::Tensor tokens, target;
};

at::Tensor loss_of(const at::Tensor& logits, const at::Tensor& target) {
  return at::cross_entropy_loss(logits.flatten(0, 1), target.flatten());
}

at::Tensor logits_in(const c10::IValue& output) {
  return output.toGenericDict().at("logits").toTensor();
}

// With a large eps, differences in the last bits of small gradients are not amplified.
torch::optim::AdamW adamw(std::vector<at::Tensor> parameters) {
  return torch::optim::AdamW(std::move(parameters),
                             torch::optim::AdamWOptions(0.01).weight_decay(0.1).eps(1e-4));
}

struct DenseRun {
  std::vector<double> losses;
  std::map<std::string, at::Tensor> parameters;
};

//! Trains on the rows of one rank. `forward` maps tokens to logits.
std::vector<double> train(const Batches& batches, std::vector<at::Tensor> parameters, int rank, int ranks,
                          const std::function<at::Tensor(const at::Tensor&)>& forward) {
  torch::optim::AdamW optimizer = adamw(std::move(parameters));
  std::vector<double> losses;
  for (int step = 0; step < kSteps; ++step) {
    const auto rows = [&](const at::Tensor& all) { return all[step].chunk(ranks)[rank]; };
    optimizer.zero_grad();
    const at::Tensor loss = loss_of(forward(rows(batches.tokens)), rows(batches.target));
    loss.backward();
    optimizer.step();
    losses.push_back(full_copy(loss).item<double>());
  }
  return losses;
}

DenseRun dense_run(const Batches& batches) {
  ExportedModule model = load_module(kTransformer);
  DenseRun run;
  run.losses = train(batches, model->parameters(), 0, 1,
                     [&](const at::Tensor& x) { return logits_in(model->forward({x})); });
  for (const auto& item : model->named_parameters()) run.parameters[item.key()] = full_copy(item.value());
  CHECK_THAT(run.losses.back() != run.losses.front());
  return run;
}

//! Ranks sum gradients in another order than the dense run. Losses near 3 and parameters near 1 then differ
//! by a few units in the last place (2e-7); a step of AdamW changes a parameter by 0.01, so a wrong gradient
//! exceeds this bound by far.
constexpr double kRounding = 5e-6;

void check_parameters(const std::vector<value::NamedTensor>& parameters, const DenseRun& dense) {
  CHECK_SAME(parameters.size(), dense.parameters.size());
  for (const value::NamedTensor& item : parameters)
    CHECK_CLOSE(full_copy(item.tensor), dense.parameters.at(item.name), 0, kRounding);
}

std::vector<value::NamedTensor> named_parameters(const ExportedModule& model) {
  std::vector<value::NamedTensor> all;
  for (const auto& item : model->named_parameters()) all.push_back({item.key(), item.value()});
  return all;
}

//! The mean of the ranks' losses is the loss of the dense run.
void check_mean_losses(const World& world, const std::vector<double>& losses, const DenseRun& dense) {
  const at::Tensor mean = torch::tensor(losses, torch::kDouble);
  world.group().all_reduce(mean, ReduceOp::Avg);
  CHECK_CLOSE(mean, torch::tensor(dense.losses, torch::kDouble), 0, kRounding);
}

TEST(ParallelExportedModule, DistributedDataParallelMatchesDenseTraining) {
  const Batches batches;
  const DenseRun dense = dense_run(batches);
  run_thread_ranks(2, [&](World& world) {
    ExportedModule model = load_module(kTransformer);
    if (world.rank().value == 1) {  // the ranks start from the parameters of rank 0
      const torch::NoGradGuard no_grad;
      model->parameters()[0].add_(1);
    }
    DistributedDataParallel ddp(model, world.group());
    const std::vector<double> losses =
        train(batches, model->parameters(), world.rank().value, 2,
              [&](const at::Tensor& x) { return logits_in(ddp.forward(Args{x})); });
    check_mean_losses(world, losses, dense);
    check_parameters(named_parameters(model), dense);
  });
}

TEST(ParallelExportedModule, FullyShardedMatchesDenseTraining) {
  const Batches batches;
  const DenseRun dense = dense_run(batches);
  run_thread_ranks(2, [&](World& world) {
    ExportedModule model = load_module(kTransformer);
    const Sharded sharded = fully_shard(model, world.group());
    const std::vector<double> losses =
        train(batches, sharded.parameters(), world.rank().value, 2,
              [&](const at::Tensor& x) { return logits_in(call(model, Args{x})); });
    check_mean_losses(world, losses, dense);
    check_parameters(sharded.gather_parameters(), dense);
  });
}

TEST(ParallelExportedModule, ShardedModuleExplainsMissingParameters) {
  const at::Tensor tokens = torch::zeros({2, kLength}, torch::kLong);
  run_thread_ranks(2, [&](World& world) {
    ExportedModule model = load_module(kTransformer);
    const Sharded sharded = fully_shard(model, world.group());
    const std::string direct = error_message<ShapeError>([&] { model->forward({tokens}); });
    CHECK_THAT(direct.find("'token.weight' has shape [0]") != std::string::npos);
    CHECK_THAT(direct.find("through penstock::runtime::call") != std::string::npos);
    call(model, Args{tokens});
  });
  run_thread_ranks(2, [&](World& world) {
    ExportedModule model = load_module(kTransformer);
    const Sharded sharded = fully_shard(model, world.group(), {}, {model->named_modules()["blocks.0"]});
    const std::string unit = error_message<ShapeError>([&] { call(model, Args{tokens}); });
    CHECK_THAT(unit.find("'blocks.0.") != std::string::npos);
    CHECK_THAT(unit.find("cannot be units") != std::string::npos);
  });
}

TEST(ParallelExportedModule, ParallelizedModuleMatchesDenseTraining) {
  const Batches batches;
  const DenseRun dense = dense_run(batches);
  for (const std::int64_t ranks : {2, 4}) {
    on_mesh({ranks}, [&](const tensor::DeviceMesh& mesh) {
      ExportedModule model = load_module(kTransformer);
      const parallel::FoundPlan found = find_parallel_plan(model->graph(), ranks);
      CHECK_SAME(found.pairs.size(), 4U);  // attention and feed-forward of two blocks
      parallelize_module(*model, mesh, found.plan);
      CHECK_THAT(tensor::is_dtensor(model->named_parameters()["blocks.0.mlp.up.weight"]));
      CHECK_THAT(!tensor::is_dtensor(model->named_parameters()["norm.weight"]));
      DenseRun run;
      run.losses = train(batches, model->parameters(), 0, 1,
                         [&](const at::Tensor& x) { return logits_in(model->forward({x})); });
      CHECK_CLOSE(torch::tensor(run.losses, torch::kDouble), torch::tensor(dense.losses, torch::kDouble), 0,
                  kRounding);
      check_parameters(named_parameters(model), dense);
    });
  }
}

TEST(ParallelExportedModule, RejectsPlanWithUnmatchedPattern) {
  on_mesh({2}, [&](const tensor::DeviceMesh& mesh) {
    ExportedModule model = load_module(kTransformer);
    const std::string message = error_message<UsageError>([&] {
      parallelize_module(*model, mesh,
                         {{"blocks.*.mlp.up", ColwiseParallel()}, {"blocks.*.mlp.dwn", RowwiseParallel()}});
    });
    CHECK_THAT(message.find("blocks.*.mlp.dwn") != std::string::npos);
    for (const at::Tensor& parameter : model->parameters()) CHECK_THAT(!tensor::is_dtensor(parameter));
  });
}

TEST(ParallelExportedModule, WorksAsPipelineStage) {
  const Batches batches;
  const DenseRun dense = dense_run(batches);
  run_thread_ranks(1, [&](World& world) {
    ExportedModule model = load_module(kTransformer);
    const PipelineStage stage(model, StageId(0), 1, torch::kCPU, world.group());
    PipelineOptions options;
    options.loss = [](const c10::IValue& output, const c10::IValue& target, const Kwargs&) {
      return loss_of(logits_in(output), target.toTensor());
    };
    ScheduleGPipe schedule(stage, 2, options);
    torch::optim::AdamW optimizer = adamw(model->parameters());
    for (int step = 0; step < kSteps; ++step) {
      optimizer.zero_grad();
      const StepResult result = schedule.step({batches.tokens[step]}, batches.target[step]);
      optimizer.step();
      CHECK_THAT(std::abs(result.loss.item<double>() - dense.losses[static_cast<std::size_t>(step)]) <
                 kRounding);
    }
    check_parameters(named_parameters(model), dense);
  });
}

TEST(ParallelExportedModule, WrappersPassTensorsAndKeywords) {
  const std::string archives = PENSTOCK_SOURCE_DIR "/tests/graph/archives/";
  run_thread_ranks(1, [&](World& world) {
    ExportedModule model = load_module(archives + "mlp.pt2");
    const at::Tensor x = torch::linspace(-1, 1, 18).view({3, 6});
    const at::Tensor expected = model(x);
    CHECK_TENSORS(call(model, x), expected);
    DistributedDataParallel ddp(model, world.group());
    CHECK_TENSORS(ddp.forward(x), expected);
  });
  ExportedModule mixed = load_module(archives + "mixed.pt2");  // forward(x, flag, *, other)
  mixed->eval();
  c10::impl::GenericDict other(c10::StringType::get(), c10::AnyType::get());
  other.insert("u", torch::ones({3, 3}));
  const Args args = {torch::ones({3, 4}), true};
  const Kwargs kwargs = {{"other", other}};
  const std::shared_ptr<runtime::StageModule> stage = make_stage_module(mixed);
  const std::vector<at::Tensor> expected = value::tensors_of(mixed->forward(args, kwargs)),
                                outputs = value::tensors_of(stage->forward(args, kwargs).output);
  ASSERT_EQ(outputs.size(), expected.size());
  for (std::size_t i = 0; i < outputs.size(); ++i) EXPECT_TRUE(outputs[i].equal(expected[i])) << i;
}

}  // namespace
}  // namespace penstock::test
