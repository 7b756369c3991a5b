// Captured and imported stages: one module per stage, moved in place, with a training mode that can be
// switched on the pipe, the stage and the schedule.
#include "support/error_message.h"
#include "support/models/capture_models.h"
#include "support/tensor_file.h"

#include <penstock/base/error.h>
#include <penstock/comm/thread_ranks.h>
#include <penstock/graph/pt2.h>
#include <penstock/pipe/pipe.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace penstock::pipe {
namespace {

using test::archive;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int kImages = 4;  // two microbatches of two rows: the archive has a fixed batch size

at::Tensor images() {
  return torch::arange(kImages * 2 * 8 * 8, torch::kFloat).reshape({kImages, 2, 8, 8}).div(50).sin();
}

// A pipe on two ranks with one stage each, and the buffers of this rank's stage.
struct TwoStages {
  TwoStages(Pipe& pipe, comm::World& world)
      : rank(world.rank().value),
        module(pipe.stage_module(StageId(rank))),
        schedule(pipe.build_stage(StageId(rank), at::kCPU, world.group()), "1F1B", 2, options_of(pipe)) {}

  static runtime::PipelineOptions options_of(const Pipe& pipe) {
    runtime::PipelineOptions options;
    options.loss = torch::mse_loss;
    return pipe.pipeline_options(options);
  }

  std::vector<at::Tensor> buffers() const {
    std::vector<at::Tensor> copies;
    for (const auto& [name, buffer] : module->named_buffers()) copies.push_back(buffer.clone());
    return copies;
  }
  bool same_buffers(const std::vector<at::Tensor>& before) const {
    const auto now = buffers();
    for (std::size_t i = 0; i < now.size(); ++i)
      if (!at::equal(now[i], before[i])) return false;
    return true;
  }

  int rank;
  std::shared_ptr<graph::GraphModule> module;
  runtime::PipelineSchedule schedule;
};

// Evaluation mode in `eval`, and training mode before and after, regardless of where it is switched.
void check_modes(Pipe& pipe, const at::Tensor& expected) {
  const at::Tensor target = torch::zeros({kImages, 3});
  ASSERT_EQ(pipe.num_stages(), 2);
  std::vector<std::string> failures(2);
  comm::run_thread_ranks(2, [&](comm::World& world) {
    TwoStages stages(pipe, world);
    const auto check = [&](bool condition, const char* what) {
      if (!condition) failures[static_cast<std::size_t>(stages.rank)] += std::string(what) + "; ";
    };
    const auto before = stages.buffers();
    for (int round = 0; round < 2; ++round) {
      const runtime::StepResult result = stages.schedule.eval({images()}, target);
      if (stages.rank == 1)
        check(at::allclose(result.outputs.toTensor(), expected, 1e-5, 1e-6), "eval is not evaluation mode");
      check(stages.same_buffers(before), "eval took statistics");
      check(stages.module->is_training(), "eval did not restore training mode");
    }
    // The module of the pipe is the one that the schedule runs.
    stages.module->train(false);
    stages.schedule.step({images()}, target);
    check(stages.same_buffers(before), "the schedule runs another module than the pipe's");
    stages.schedule.eval({images()}, target);
    check(!stages.module->is_training(), "eval did not restore evaluation mode");
    stages.schedule.train();
    check(stages.module->is_training(), "the schedule did not switch the module");
    stages.schedule.step({images()}, target);
    check(!stages.same_buffers(before) || before.empty(), "training mode took no statistics");
  });
  for (const std::string& failure : failures) EXPECT_EQ(failure, "");
}

TEST(PipeModes, SwitchForCapturedModel) {
  at::set_num_threads(1);
  test::ConvNet model, dense;
  {
    const torch::NoGradGuard no_grad;
    auto target = dense->named_parameters();
    for (const auto& item : model->named_parameters()) target[item.key()].copy_(item.value());
  }
  dense->eval();
  const at::Tensor expected = dense->forward(images()).detach();
  Pipe pipe =
      pipeline(model, {images().slice(0, 0, 2)}, {}, SplitPoints{{"conv2", graph::SplitPoint::Beginning}});
  check_modes(pipe, expected);
}

TEST(PipeModes, SwitchForImportedModel) {
  at::set_num_threads(1);
  const graph::Pt2Archive file(archive("convnet.pt2"));
  graph::GraphModule dense(file.graph(), file.load(file.graph().slots));
  dense.train(false);
  std::vector<at::Tensor> outputs;
  for (const at::Tensor& part : images().split(2))
    outputs.push_back(dense.forward({part}).toTensor().detach());
  Pipe pipe = load_pt2(archive("convnet.pt2"), Balanced{2});
  check_modes(pipe, at::cat(outputs));
}

TEST(PipeModes, SwitchForLoadedAndUnloadedStages) {
  test::ConvNet model;
  Pipe pipe = pipeline(model, {images().slice(0, 0, 2)}, {}, Balanced{3});
  const auto first = pipe.stage_module(StageId(0));
  pipe.eval();
  EXPECT_FALSE(pipe.is_training() || first->is_training() || pipe.stage_module(StageId(1))->is_training());
  pipe.train();
  EXPECT_TRUE(pipe.is_training() && first->is_training() && pipe.stage_module(StageId(2))->is_training());
}

TEST(PipeStages, HaveOneModuleMovedInPlace) {
  const auto model = [] {
    const graph::MetaDeviceScope meta_scope;
    return test::Mlp();
  }();
  Pipe pipe = pipeline(model, {torch::zeros({2, 6})}, {}, Balanced{2});
  const auto module = pipe.stage_module(StageId(1));
  const auto parameters = module->named_parameters();
  ASSERT_TRUE(parameters[0].tensor.is_meta());
  module->train(false);
  EXPECT_EQ(pipe.stage_module(StageId(1), at::Device(at::kCPU)), module);
  EXPECT_FALSE(module->is_training());
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    EXPECT_TRUE(parameters[i].tensor.is_cpu());  // a handle obtained before the move
    EXPECT_TRUE(parameters[i].tensor.requires_grad() && parameters[i].tensor.is_leaf());
    EXPECT_TRUE(module->named_parameters()[i].tensor.is_same(parameters[i].tensor));
    parameters[i].tensor.detach().fill_(0.5);
  }
  EXPECT_TRUE(pipe.stage_module(StageId(0))->named_parameters()[0].tensor.is_meta());
  const at::Tensor y = module->run({torch::ones({2, 6})})[0].toTensor();
  y.sum().backward();
  EXPECT_TRUE(parameters[0].tensor.grad().defined());
}

TEST(PipeStages, SuggestDynamicBatchForOtherBatchSize) {
  test::Mlp model;
  Pipe fixed = pipeline(model, {torch::zeros({2, 6})}, {}, Balanced{2});
  const auto suggests_dynamic_batch =
      AllOf(HasSubstr("is 3, expected 2"), HasSubstr("PipeOptions::dynamic_batch"));
  EXPECT_THAT(test::error_message<ShapeError>([&] {
                fixed.forward({torch::zeros({3, 6})});
              }),
              suggests_dynamic_batch);
  EXPECT_THAT(test::error_message<ShapeError>([&] {
                fixed.make_stage_module(StageId(0))->forward({torch::zeros({3, 6})}, {});
              }),
              suggests_dynamic_batch);
  Pipe any = pipeline(model, {torch::zeros({2, 6})}, {}, Balanced{2}, {.dynamic_batch = true});
  EXPECT_EQ(any.forward({torch::zeros({3, 6})}).toTensor().size(0), 3);
  // A file cannot be captured with another batch size.
  Pipe imported = load_pt2(archive("convnet.pt2"), Balanced{2});
  EXPECT_THAT(test::error_message<ShapeError>([&] {
                imported.forward({torch::zeros({3, 2, 8, 8})});
              }),
              AllOf(HasSubstr("export it with a dynamic batch"), Not(HasSubstr("PipeOptions"))));
}

// A plain forward, captured with a keyword argument.
struct MaskedImpl : torch::nn::Module {
  MaskedImpl()
      : first(register_module("first", torch::nn::Linear(4, 4))),
        second(register_module("second", torch::nn::Linear(4, 4))) {}
  at::Tensor forward(const at::Tensor& x, const at::Tensor& mask) {
    return second(torch::relu(first(x)) * mask);
  }
  torch::nn::Linear first, second;
};
TORCH_MODULE(Masked);

TEST(PipeStages, AcceptKeywordArgumentsByGivenNames) {
  Masked model;
  const at::Tensor x = torch::randn({3, 4}), mask = torch::rand({3, 4});
  Pipe pipe = pipeline(runtime::make_stage_module(model, {"x", "mask"}), {x}, {{"mask", mask}}, Balanced{2});
  EXPECT_TRUE(at::equal(pipe.forward({x}, {{"mask", mask}}).toTensor(), model->forward(x, mask)));
  EXPECT_EQ(pipe.stage_module(StageId(0))->named_parameters()[0].name, "first.weight");
  EXPECT_ERROR(pipeline(model, {x}, {{"mask", mask}}, Balanced{2}), UsageError,
               "given the keyword argument 'mask'");
}

}  // namespace
}  // namespace penstock::pipe
