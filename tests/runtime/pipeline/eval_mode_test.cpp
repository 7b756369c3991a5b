// Training and evaluation mode of hand-written stages: how it is switched, and that it is restored.
#include "support/check.h"

#include <penstock/base/error.h>
#include <penstock/comm/thread_ranks.h>
#include <penstock/runtime/schedules.h>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <optional>

namespace penstock::test {
namespace {

// Batch norm and dropout; `frozen` is a batch norm that the user keeps in evaluation mode.
struct LayerImpl : torch::nn::Module {
  explicit LayerImpl(int seed) {
    linear = register_module("linear", torch::nn::Linear(6, 6));
    norm = register_module("norm", torch::nn::BatchNorm1d(6));
    frozen = register_module("frozen", torch::nn::BatchNorm1d(6));
    drop = register_module("drop", torch::nn::Dropout(0.5));
    const torch::NoGradGuard no_grad;
    auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<std::uint64_t>(seed));
    for (auto& parameter : parameters()) parameter.normal_(0, 0.5, generator);
    for (auto& buffer : buffers())
      if (buffer.is_floating_point()) buffer.uniform_(0.5, 1.5, generator);
    frozen->eval();
  }
  at::Tensor forward(const at::Tensor& x) {
    if (throws) throw std::runtime_error("broken on purpose");
    return drop(norm(frozen(linear(x)))).tanh();
  }
  torch::nn::Linear linear{nullptr};
  torch::nn::BatchNorm1d norm{nullptr}, frozen{nullptr};
  torch::nn::Dropout drop{nullptr};
  bool throws = false;
};
TORCH_MODULE(Layer);

constexpr int kLayerRows = 10, kChunks = 4;

at::Tensor layer_batch() {
  return torch::arange(kLayerRows * 6, torch::kFloat).reshape({kLayerRows, 6}).div(20).sin();
}

// Two dense layers in evaluation mode, in which rows are independent of each other.
at::Tensor evaluated() {
  Layer first(0), second(1);
  first->eval();
  second->eval();
  return second->forward(first->forward(layer_batch())).detach();
}

std::vector<at::Tensor> buffer_copies(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> copies;
  for (const at::Tensor& tensor : tensors) copies.push_back(tensor.detach().clone());
  return copies;
}

bool all_equal(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  for (std::size_t i = 0; i < a.size(); ++i)
    if (!at::equal(a[i], b[i])) return false;
  return a.size() == b.size();
}

bool as_the_user_left_it(const Layer& layer) {
  return layer->is_training() && layer->linear->is_training() && layer->norm->is_training() &&
         !layer->frozen->is_training() && layer->drop->is_training();
}

runtime::PipelineOptions layer_options() {
  runtime::PipelineOptions options;
  options.loss = torch::mse_loss;
  return options;
}

TEST(RuntimeEvalMode, IsSetDuringEvalAndRestoredForEverySubmodule) {
  const at::Tensor expected = evaluated();
  for (const char* const name : {"1F1B", "GPipe"}) {
    comm::run_thread_ranks(2, [&](comm::World& world) {
      const int rank = world.rank().value;
      const Layer layer(rank);
      runtime::PipelineSchedule pipeline(
          runtime::PipelineStage(layer, StageId(rank), 2, at::kCPU, world.group()), name, kChunks,
          layer_options());
      for (int round = 0; round < 2; ++round) {
        const auto buffers = buffer_copies(layer->buffers());
        const at::Tensor outputs = [&] {
          const c10::IValue result = pipeline.eval({layer_batch()}, layer_batch()).outputs;
          return rank == 1 ? result.toTensor() : at::Tensor();
        }();
        if (rank == 1 && round == 0) CHECK_THAT(at::allclose(outputs, expected, 1e-5, 1e-6));
        CHECK_THAT(all_equal(layer->buffers(), buffers));  // no statistics were updated
        CHECK_THAT(as_the_user_left_it(layer));
        pipeline.step({layer_batch()}, layer_batch());
        CHECK_THAT(!all_equal(layer->buffers(), buffers));
        CHECK_THAT(as_the_user_left_it(layer));
      }
    });
  }
}

TEST(RuntimeTrainingMode, BatchNormOfOneRowGetsHintAboutMicrobatches) {
  comm::run_thread_ranks(1, [](comm::World& world) {
    runtime::PipelineSchedule pipeline(
        runtime::PipelineStage(Layer(0), StageId(0), 1, at::kCPU, world.group()), "1F1B", kLayerRows,
        layer_options());
    std::string message, hint;
    try {
      pipeline.step({layer_batch()}, layer_batch());
    } catch (const Error& e) {
      message = e.message();
      hint = e.hint();
    }
    CHECK_THAT(message.find("more than 1 value per channel") != std::string::npos);
    CHECK_THAT(
        hint.starts_with("the microbatch has one row, too few for a batch norm: use fewer microbatches "
                         "or a larger batch; nearby actions"));
  });
}

TEST(RuntimeEvalMode, IsRestoredIfForwardThrows) {
  comm::run_thread_ranks(1, [](comm::World& world) {
    Layer layer(0);
    runtime::PipelineSchedule pipeline(runtime::PipelineStage(layer, StageId(0), 1, at::kCPU, world.group()),
                                       "1F1B", kChunks);
    layer->throws = true;
    bool thrown = false;
    try {
      pipeline.eval({layer_batch()});
    } catch (const std::exception&) {
      thrown = true;
    }
    CHECK_THAT(thrown);
    CHECK_THAT(as_the_user_left_it(layer));
    layer->throws = false;
    CHECK_SAME(pipeline.eval({layer_batch()}).outputs.toTensor().size(0), kLayerRows);
  });
}

// Returns its input. It cannot enter the mode `refused`.
struct RefusingStage : runtime::StageModule {
  runtime::StageResult forward(const value::Args& args, const value::Kwargs&) override { return args[0]; }
  std::vector<value::NamedTensor> parameters() const override { return {}; }
  std::vector<value::NamedTensor> buffers() const override { return {}; }
  void to(at::Device) override {}
  void train(bool on) override {
    if (refused == on) throw std::runtime_error("refused on purpose");
    training = on;
  }
  bool is_training() const override { return training; }
  std::optional<bool> refused;
  bool training = true;
};

TEST(RuntimeEvalMode, IsRestoredForOtherStagesIfOneRefuses) {
  comm::run_thread_ranks(1, [](comm::World& world) {
    std::vector<std::shared_ptr<RefusingStage>> modules;
    std::vector<runtime::PipelineStage> stages;
    for (int stage = 0; stage < 3; ++stage) {
      modules.push_back(std::make_shared<RefusingStage>());
      stages.emplace_back(std::shared_ptr<runtime::StageModule>(modules.back()), StageId(stage), 3, at::kCPU,
                          world.group());
    }
    runtime::PipelineSchedule pipeline(std::move(stages), "LoopedBFS", kChunks);
    // The result of a completed evaluation is not lost because a stage cannot return to training.
    modules[1]->refused = true;
    CHECK_THAT(at::equal(pipeline.eval({layer_batch()}).outputs.toTensor(), layer_batch()));
    CHECK_THAT(modules[0]->training && !modules[1]->training && modules[2]->training);
    // A stage that cannot enter evaluation mode fails the call.
    modules[1]->refused = false;
    bool thrown = false;
    try {
      pipeline.eval({layer_batch()});
    } catch (const std::exception&) {
      thrown = true;
    }
    CHECK_THAT(thrown);
    CHECK_THAT(modules[0]->training && modules[2]->training);
  });
}

TEST(RuntimeEvalMode, IsUnchangedOnRequest) {
  comm::run_thread_ranks(1, [](comm::World& world) {
    const Layer layer(0);
    runtime::PipelineSchedule pipeline(runtime::PipelineStage(layer, StageId(0), 1, at::kCPU, world.group()),
                                       "1F1B", kChunks);
    const auto buffers = buffer_copies(layer->buffers());
    pipeline.eval({layer_batch()}, {}, {.keep_mode = true});
    CHECK_THAT(!all_equal(layer->buffers(), buffers));  // batch norm updated its statistics
  });
}

TEST(RuntimeEvalMode, CanBeSetOnStageAndSchedule) {
  comm::run_thread_ranks(1, [](comm::World& world) {
    const Layer layer(0);
    runtime::PipelineStage stage(layer, StageId(0), 1, at::kCPU, world.group());
    runtime::PipelineSchedule pipeline(stage, "1F1B", kChunks, layer_options());
    CHECK_THAT(stage.is_training());
    pipeline.train(false);
    CHECK_THAT(!stage.is_training() && !layer->drop->is_training());
    const auto buffers = buffer_copies(layer->buffers());
    pipeline.step({layer_batch()}, layer_batch());  // a step runs in the current mode of the modules
    CHECK_THAT(all_equal(layer->buffers(), buffers));
    CHECK_THAT(!stage.is_training());
    stage.train();
    CHECK_THAT(layer->is_training());
    stage.eval();
    CHECK_THAT(!layer->norm->is_training());
    pipeline.train();
    CHECK_THAT(layer->norm->is_training());
  });
}

TEST(RuntimeEvalMode, IsTrackedForFunctionWithoutModule) {
  const auto stage = runtime::make_stage_module(
      nullptr, [](const value::Args& args, const value::Kwargs&) { return args[0]; });
  EXPECT_TRUE(stage->is_training());
  const auto restore = stage->enter_eval();
  EXPECT_FALSE(stage->is_training());
  restore();
  EXPECT_TRUE(stage->is_training());
}

}  // namespace
}  // namespace penstock::test
