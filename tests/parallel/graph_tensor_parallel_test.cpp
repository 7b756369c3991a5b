// Tensor parallelism of graphs, captured from C++ and imported from Python, compared with the same graph in
// one process.
#include "parallel/training_result.h"
#include "support/error_message.h"
#include "support/mesh_ranks.h"

#include <penstock/base/error.h>
#include <penstock/graph/graph_module.h>
#include <penstock/graph/graph_text.h>
#include <penstock/graph/pt2.h>
#include <penstock/models/gpt.h>
#include <penstock/parallel/tensor_parallel.h>
#include <penstock/pipe/pipe.h>

#include <gmock/gmock.h>
#include <torch/torch.h>

namespace penstock::test {
namespace {

using testing::HasSubstr;

constexpr std::int64_t kVocabulary = 13, kLength = 6, kRows = 4;

at::Tensor tokens_of(int step, std::int64_t rows = kRows, std::int64_t vocabulary = kVocabulary) {
  return at::arange(rows * kLength).mul(7 + step).add(step).remainder(vocabulary).view({rows, kLength});
}

models::GptOptions gpt_options(bool modern) {
  models::GptOptions options{
      .vocabulary = kVocabulary, .context = kLength, .layers = 2, .heads = 4, .width = 16};
  options.feed_forward = modern ? models::FeedForwardKind::SwiGlu : models::FeedForwardKind::Gelu;
  options.positions = modern ? models::PositionKind::Rotary : models::PositionKind::Learned;
  options.tied = modern;
  options.bias = !modern;
  return options;
}

graph::GraphModule captured_gpt(const models::GptOptions& options) {
  models::Gpt gpt(options);
  models::initialize(*gpt, options, 3);
  const graph::ForwardFunction forward = [gpt](const value::Args& args, const value::Kwargs&) mutable {
    return c10::IValue(gpt->forward(args[0].toTensor()));
  };
  graph::Captured captured = capture(forward, pipe::model_tensors(*gpt), {tokens_of(0)});
  return {std::move(captured.graph), std::move(captured.tensors)};
}

graph::GraphModule imported(const std::string& name) {
  const graph::Pt2Archive file(PENSTOCK_SOURCE_DIR "/tests/" + name);
  return {file.graph(), file.load(file.graph().slots)};
}

parallel::ParallelPlan gpt_plan(bool sequence, bool tied) {
  parallel::ParallelPlan plan;
  for (const char* name : {"attention.query", "attention.key", "attention.value", "mlp.up"})
    plan.push_back({std::string("blocks.*.") + name, parallel::ColwiseParallel()});
  for (const char* name : {"attention.out", "mlp.down"})
    plan.push_back({std::string("blocks.*.") + name, parallel::RowwiseParallel()});
  plan.push_back({"token", parallel::RowwiseParallel()});
  if (tied) plan.push_back({"blocks.*.mlp.gate", parallel::ColwiseParallel()});
  if (!tied) plan.push_back({"head", parallel::ColwiseParallel()});
  if (sequence) {
    plan.push_back({"blocks.*.norm?", parallel::SequenceParallel()});
    plan.push_back({"norm", parallel::SequenceParallel()});
  }
  return plan;
}

const parallel::ParallelPlan kTransformerPlan = {{"blocks.*.attention.q", parallel::ColwiseParallel()},
                                                 {"blocks.*.attention.k", parallel::ColwiseParallel()},
                                                 {"blocks.*.attention.v", parallel::ColwiseParallel()},
                                                 {"blocks.*.attention.out", parallel::RowwiseParallel()},
                                                 {"blocks.*.mlp.gate", parallel::ColwiseParallel()},
                                                 {"blocks.*.mlp.up", parallel::ColwiseParallel()},
                                                 {"blocks.*.mlp.down", parallel::RowwiseParallel()},
                                                 {"token", parallel::RowwiseParallel()},
                                                 {"head", parallel::ColwiseParallel()}};

//! Three steps of AdamW, with the output and the gradients of the first.
TrainingResult train(graph::GraphModule& module, std::int64_t vocabulary) {
  TrainingResult result;
  std::vector<at::Tensor> parameters;
  for (const auto& [name, tensor] : module.named_parameters()) parameters.push_back(tensor);
  torch::optim::AdamW optimizer(parameters, torch::optim::AdamWOptions(0.01).weight_decay(0.1).eps(1e-4));
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    const at::Tensor logits = module.run({tokens_of(step, kRows, vocabulary)})[0].toTensor();
    const at::Tensor targets = tokens_of(step + 1, kRows, vocabulary).flatten();
    const at::Tensor loss = at::cross_entropy_loss(logits.flatten(0, 1), targets);
    loss.backward();
    result.losses.push_back(full_copy(loss).item<double>());
    if (step == 0) {
      result.output = full_copy(logits);
      for (const at::Tensor& p : parameters) result.gradients.push_back(full_copy(p.grad()));
    }
    optimizer.step();
  }
  for (const at::Tensor& p : parameters) result.parameters.push_back(full_copy(p));
  return result;
}

TEST(ParallelGraphTensorParallel, CapturedGptMatchesDenseTraining) {
  for (const bool modern : {false, true}) {
    graph::GraphModule dense = captured_gpt(gpt_options(modern));
    const TrainingResult alone = train(dense, kVocabulary);
    for (const std::int64_t ranks : {2, 4}) {
      for (const bool sequence : {false, true}) {
        on_mesh({ranks}, [&](const tensor::DeviceMesh& mesh) {
          graph::GraphModule module = captured_gpt(gpt_options(modern));
          parallel::parallelize_module(module, mesh, gpt_plan(sequence, modern));
          EXPECT_LT(distance(train(module, kVocabulary), alone), 1e-5)
              << ranks << (modern ? " modern" : "") << (sequence ? " sequence" : "");
        });
      }
    }
  }
}

TEST(ParallelGraphTensorParallel, ImportedTransformerMatchesDenseTraining) {
  const std::string name = "parallel/archives/transformer.pt2";
  graph::GraphModule dense = imported(name);
  const TrainingResult alone = train(dense, 17);
  for (const std::int64_t ranks : {2, 3, 4}) {  // with 3 ranks, shards are uneven and do not align with heads
    on_mesh({ranks}, [&](const tensor::DeviceMesh& mesh) {
      graph::GraphModule module = imported(name);
      parallel::parallelize_module(module, mesh, kTransformerPlan);
      EXPECT_LT(distance(train(module, 17), alone), 1e-5) << ranks;
    });
  }
}

TEST(ParallelGraphTensorParallel, BlockNeedsTwoAllReducesPerPass) {
  models::GptOptions options = gpt_options(false);
  for (const std::int64_t ranks : {2, 4}) {
    on_mesh({ranks}, [&](const tensor::DeviceMesh& mesh) {
      models::Block block(options);
      const graph::ForwardFunction forward = [block](const value::Args& args, const value::Kwargs&) mutable {
        return c10::IValue(block->forward(args[0].toTensor()));
      };
      const at::Tensor input = numbers({kRows, kLength, options.width}, 1);
      graph::Captured captured = capture(forward, pipe::model_tensors(*block), {input});
      graph::GraphModule module(std::move(captured.graph), std::move(captured.tensors));
      parallel::ParallelPlan plan;
      for (const char* name : {"attention.query", "attention.key", "attention.value", "mlp.up"})
        plan.push_back({name, parallel::ColwiseParallel()});
      for (const char* name : {"attention.out", "mlp.down"})
        plan.push_back({name, parallel::RowwiseParallel()});
      plan.push_back({"", parallel::PrepareModuleOutput{tensor::Replicate()}});
      parallel::parallelize_module(module, mesh, plan);
      const at::Tensor x = distribute_tensor(input, mesh, {tensor::Replicate()}).set_requires_grad(true);
      tensor::reset_traffic();
      const at::Tensor y = module.run({x})[0].toTensor();
      EXPECT_EQ(tensor::traffic().all_reduces, 2);
      EXPECT_EQ(tensor::traffic().calls(), 2);
      tensor::reset_traffic();
      y.pow(2).sum().backward();
      EXPECT_EQ(tensor::traffic().all_reduces, 2);
      EXPECT_EQ(tensor::traffic().calls(), 2);
    });
  }
}

TEST(ParallelGraphTensorParallel, PreparesModuleInputsAndOutputs) {
  on_mesh({2}, [](const tensor::DeviceMesh& mesh) {
    const at::Tensor tokens = tokens_of(0, kRows, 17);
    const at::Tensor want =
        imported("parallel/archives/transformer.pt2").run({tokens})[0].toTensor().detach();
    graph::GraphModule module = imported("parallel/archives/transformer.pt2");
    parallel::ParallelPlan plan = kTransformerPlan;
    plan.push_back({"blocks.0", parallel::PrepareModuleInput{{tensor::Shard(1)}}});
    plan.push_back(
        {"blocks.1", parallel::PrepareModuleInputOutput{{{tensor::Replicate()}}, {tensor::Shard(0)}}});
    plan.push_back({"", parallel::PrepareModuleOutput{tensor::Shard(2), true}});
    parallel::parallelize_module(module, mesh, plan);
    std::map<std::string, int> boundaries;
    for (const graph::Node& node : module.graph().nodes)
      if (node.name() == "penstock::at_boundary") ++boundaries[node.module];
    EXPECT_EQ(boundaries, (std::map<std::string, int>{{"", 1}, {"blocks.0", 1}, {"blocks.1", 2}}));
    for (const bool training : {true, false}) {
      module.train(training);
      const at::Tensor part = module.run({tokens})[0].toTensor();
      ASSERT_FALSE(tensor::is_dtensor(part));
      const auto mine = want.chunk(2, 2)[static_cast<std::size_t>(mesh.coordinate(0))];
      EXPECT_LT(difference(part.detach(), mine), 1e-5);
    }
  });
}

TEST(ParallelGraphTensorParallel, PipelineStagesMatchDenseTraining) {
  models::GptOptions options = gpt_options(true);
  options.layers = 4;
  graph::GraphModule dense = captured_gpt(options);
  const at::Tensor tokens = at::cat({tokens_of(0), tokens_of(1), tokens_of(2), tokens_of(3)}),
                   targets = at::cat({tokens_of(1), tokens_of(2), tokens_of(3), tokens_of(4)});
  const auto loss_of = [](const at::Tensor& logits, const at::Tensor& target) {
    return at::cross_entropy_loss(logits.flatten(0, 1), target.flatten());
  };
  double want = 0;
  for (int m = 0; m < 4; ++m) {
    const at::Tensor loss = loss_of(dense.run({tokens_of(m)})[0].toTensor(), tokens_of(m + 1)) / 4;
    loss.backward();
    want += loss.item<double>();
  }
  std::map<std::string, at::Tensor> gradients;
  for (const auto& [name, tensor] : dense.named_parameters()) gradients[name] = tensor.grad();

  for (const std::string name : {"1F1B", "ZBVZeroBubble", "Interleaved1F1B"}) {
    const int per_rank = name == "1F1B" ? 1 : 2, count = 2 * per_rank;
    on_mesh({2, 2}, [&](const tensor::DeviceMesh& mesh) {  // x: pipeline, y: tensor parallel
      models::Gpt gpt(options);
      models::initialize(*gpt, options, 3);
      const graph::ForwardFunction forward = [gpt](const value::Args& args, const value::Kwargs&) mutable {
        return c10::IValue(gpt->forward(args[0].toTensor()));
      };
      pipe::SplitPoints split{{"blocks.2", graph::SplitPoint::Beginning}};
      if (count == 4) split["blocks.1"] = split["blocks.3"] = graph::SplitPoint::Beginning;
      pipe::Pipe pipe = pipe::pipeline_of(forward, pipe::model_tensors(*gpt), {tokens_of(0)}, {}, split);
      parallel::ParallelPlan plan = gpt_plan(false, true);
      // Two stages hold the token embedding, so it cannot be sharded.
      std::erase_if(plan, [](const auto& entry) { return entry.first == "token"; });
      plan.push_back({"", parallel::PrepareModuleOutput{tensor::Replicate(), true}});
      const int rank = static_cast<int>(mesh.coordinate(0));
      std::vector<int> mine{rank};
      if (per_rank == 2) mine.push_back(name == "ZBVZeroBubble" ? 3 - rank : 2 + rank);
      std::vector<runtime::PipelineStage> stages;
      for (const int stage : mine) {
        parallelize_module(*pipe.stage_module(StageId(stage)), mesh["y"], plan,
                           parallel::UnknownPath::Ignore);
        stages.push_back(pipe.build_stage(StageId(stage), at::kCPU, mesh.group("x")));
      }
      runtime::PipelineOptions more;
      more.loss = runtime::tensor_loss(loss_of);
      runtime::PipelineSchedule schedule(stages, name, 4, pipe.pipeline_options(more));
      const runtime::StepResult result = schedule.step({tokens}, targets);
      if (result.loss.defined()) {
        EXPECT_NEAR(result.loss.item<double>(), want, 1e-5) << name;
      }
      for (const int stage : mine) {
        for (const auto& [parameter, tensor] : pipe.stage_module(StageId(stage))->named_parameters()) {
          EXPECT_LT(difference(full_copy(tensor.grad()), gradients.at(parameter)), 1e-5)
              << name << " stage " << stage << " " << parameter;
        }
      }
    });
  }
}

TEST(ParallelGraphTensorParallel, ReportsInvalidPlans) {
  on_mesh({2}, [](const tensor::DeviceMesh& mesh) {
    graph::GraphModule module = imported("parallel/archives/transformer.pt2");
    const std::string before = to_string(module.graph());
    const auto expect_unchanged = [&] {
      for (const auto& [name, tensor] : module.named_parameters())
        EXPECT_FALSE(tensor::is_dtensor(tensor)) << name;
      EXPECT_EQ(to_string(module.graph()), before);
    };
    // The first entry of each plan is valid.
    using Entry = parallel::ParallelPlan::value_type;
    const auto expect_error = [&](const Entry& invalid, const std::string& text) {
      const parallel::ParallelPlan plan{{"token", parallel::ColwiseParallel()}, invalid};
      EXPECT_THAT(error_message([&] { parallel::parallelize_module(module, mesh, plan); }), HasSubstr(text));
      expect_unchanged();
    };
    expect_error({"blocks.0.mlp.upp", parallel::ColwiseParallel()}, "blocks.0.mlp.up");
    expect_error({"norm", parallel::RowwiseParallel()}, "RowwiseParallel does not fit module 'norm'");
    expect_error({"head", parallel::ColwiseParallel()}, "token.weight");
    EXPECT_NO_THROW(parallelize_module(module, mesh, {{"elsewhere", parallel::ColwiseParallel()}},
                                       parallel::UnknownPath::Ignore));
    expect_unchanged();

    // An operator without a rule: the error has its name, its module and the placements.
    struct Inverting : torch::nn::Module {
      Inverting() { weight = register_parameter("weight", numbers({4, 4}, 1)); }
      at::Tensor weight;
    };
    const auto owner = std::make_shared<Inverting>();
    const graph::ForwardFunction forward = [owner](const value::Args& args, const value::Kwargs&) {
      const graph::ModuleScope scope("solver");
      return c10::IValue(at::linalg_inv(args[0].toTensor().matmul(owner->weight)));
    };
    graph::Captured captured = capture(forward, pipe::model_tensors(*owner), {numbers({4, 4}, 2)});
    graph::GraphModule inverting(std::move(captured.graph), std::move(captured.tensors));
    parallel::parallelize_module(inverting, mesh,
                                 {{"", parallel::DistributeParameters{{{"weight", tensor::Shard(1)}}}}});
    EXPECT_THAT(error_message([&] {
                  inverting.run({numbers({4, 4}, 2)});
                }),
                testing::AllOf(HasSubstr("linalg_inv"), HasSubstr("of module solver"), HasSubstr("Shard(1)"),
                               HasSubstr("to_local()")));
  });
}

}  // namespace
}  // namespace penstock::test
