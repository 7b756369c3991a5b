// Stages and their devices: modules built on the meta device, and device types that must not be mixed.
#include "support/check.h"
#include "support/dense_comparison.h"
#include "support/error_message.h"
#include "support/models/stage_models.h"

#include <penstock/base/error.h>
#include <penstock/comm/thread_ranks.h>
#include <penstock/runtime/schedules.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <set>
#include <string>
#include <vector>

namespace penstock::test {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

// A layer that can be built on any device, like large models on the meta device.
struct Affine : torch::nn::Module {
  explicit Affine(at::Device device) {
    const auto options = at::TensorOptions().device(device);
    weight = register_parameter("weight", torch::empty({6, 6}, options));
    bias = register_parameter("bias", torch::empty({6}, options));
    frozen = register_parameter("frozen", torch::empty({6}, options), false);
    scale = register_buffer("scale", torch::empty({6}, options));
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y = at::tanh(x.matmul(weight) + bias + frozen) * scale.clone();
    scale.mul_(0.5);
    return y;
  }
  // Sets the values of a stage; tensors on the meta device have none.
  void fill(double value) {
    const torch::NoGradGuard no_grad;
    for (at::Tensor& tensor : parameters())
      tensor.copy_(torch::arange(tensor.numel()).reshape(tensor.sizes()) * 0.01 + value);
    scale.fill_(2);
  }
  at::Tensor weight, bias, frozen, scale;
};

TEST(RuntimeMetaModules, AreMaterializedOnStageDeviceByInitializer) {
  const at::Tensor x = torch::randn({8, 6}), target = torch::randn({8, 6});
  const auto loss = [](const at::Tensor& y, const at::Tensor& t) { return (y - t).square().mean(); };
  comm::run_thread_ranks(2, [&](comm::World& world) {
    const int rank = world.rank().value;
    const auto step = [&](const std::shared_ptr<Affine>& module, runtime::StageOptions stage_options) {
      const runtime::PipelineStage stage(module, StageId(rank), 2, at::kCPU, world.group(),
                                         std::move(stage_options));
      runtime::PipelineOptions options;
      options.loss = runtime::tensor_loss(loss);
      runtime::PipelineSchedule pipeline({stage}, "1F1B", 2, options);
      pipeline.step({x}, target);
    };
    const auto plain = std::make_shared<Affine>(at::kCPU), late = std::make_shared<Affine>(at::kMeta);
    plain->fill(rank * 0.1);
    const at::Tensor held = late->weight;  // a handle of the caller
    runtime::StageOptions stage_options;
    int calls = 0;
    stage_options.initialize = [&] {
      for (const at::Tensor& tensor : late->parameters()) {
        CHECK_THAT(tensor.is_cpu());  // memory first, then values
        CHECK_THAT(tensor.is_leaf());
      }
      CHECK_THAT(late->weight.requires_grad() && !late->frozen.requires_grad());
      late->fill(rank * 0.1);
      ++calls;
    };
    step(plain, {});
    step(late, stage_options);
    CHECK_SAME(calls, 1);
    for (std::size_t i = 0; i < plain->parameters().size(); ++i) {
      CHECK_TENSORS(late->parameters()[i], plain->parameters()[i]);
      CHECK_SAME(plain->parameters()[i].grad().defined(), plain->parameters()[i].requires_grad());
      if (plain->parameters()[i].grad().defined())
        CHECK_TENSORS(late->parameters()[i].grad(), plain->parameters()[i].grad());
    }
    CHECK_TENSORS(late->scale, plain->scale);
    CHECK_TENSORS(held, plain->weight);
  });
}

// libtorch has no second device here, so this module records the device that it is moved to.
struct Sent : runtime::StageModule {
  runtime::StageResult forward(const value::Args& args, const value::Kwargs&) override { return args[0]; }
  std::vector<value::NamedTensor> parameters() const override { return {}; }
  std::vector<value::NamedTensor> buffers() const override { return {}; }
  void to(at::Device device) override { devices.push_back(device); }
  void train(bool on) override { training = on; }
  bool is_training() const override { return training; }
  bool training = true;
  std::vector<at::Device> devices;
};

TEST(RuntimeStageModules, AreMovedToStageDevice) {
  comm::run_thread_ranks(1, [](comm::World& world) {
    const auto module = std::make_shared<Sent>();
    const runtime::PipelineStage stage(std::shared_ptr<runtime::StageModule>(module), StageId(0), 1,
                                       at::kMeta, world.group());
    CHECK_SAME(module->devices.size(), 1U);
    CHECK_THAT(module->devices.front() == at::Device(at::kMeta));
    CHECK_THAT(stage.device() == at::Device(at::kMeta));
  });
}

TEST(RuntimeStageModules, MissingFunctionIsReportedWithHint) {
  const std::string any = error_message<UsageError>([] { runtime::make_stage_module(nullptr, nullptr); });
  EXPECT_THAT(any, AllOf(HasSubstr("given no forward function"), HasSubstr("only a module")));
  const std::string named = error_message<UsageError>([] {
    runtime::make_stage_module(nullptr, nullptr, std::set<std::string>{"mask", "scale"});
  });
  EXPECT_THAT(named, AllOf(HasSubstr("keyword arguments (mask, scale)"), HasSubstr("that takes them")));
}

TEST(RuntimeStageLists, AreMadeFromOneStageBracesOrVector) {
  comm::run_thread_ranks(1, [](comm::World& world) {
    const auto make = [&](int index, int stages) {
      return runtime::PipelineStage(std::make_shared<Affine>(at::kCPU), StageId(index), stages, at::kCPU,
                                    world.group());
    };
    const runtime::PipelineStage only = make(0, 1), first = make(0, 2), second = make(1, 2);
    const std::vector<runtime::PipelineStage> both{first, second};
    const auto count = [](const runtime::PipelineSchedule& pipeline) { return pipeline.stages().size(); };
    constexpr auto kind = schedule::ScheduleKind::LoopedBFS;
    CHECK_SAME(count({only, kind, 2}), std::size_t{1});
    CHECK_SAME(count({{only}, "LoopedBFS", 2}), std::size_t{1});
    CHECK_SAME(count(runtime::ScheduleLoopedBFS(only, 2)), std::size_t{1});
    CHECK_SAME(count({both, "LoopedBFS", 2}), std::size_t{2});
    CHECK_SAME(count({{first, second}, kind, 2}), std::size_t{2});
    CHECK_SAME(count(runtime::ScheduleLoopedBFS({first, second}, 2)), std::size_t{2});
    CHECK_SAME(count({both, make_schedule(kind, {1, 2, 2})}), std::size_t{2});
  });
}

TEST(RuntimeMetaModules, RequireInitializer) {
  comm::run_thread_ranks(1, [](comm::World& world) {
    try {
      runtime::PipelineStage(std::make_shared<Affine>(at::kMeta), StageId(0), 1, at::kCPU, world.group());
      throw std::logic_error("not refused");
    } catch (const UsageError& e) {
      CHECK_THAT(std::string(e.what()).find("initialize") != std::string::npos);
    }
  });
}

runtime::PipelineStage stage_on(at::Device device, int index, comm::World& world) {
  runtime::StageOptions options;
  options.initialize = [] {};
  return runtime::PipelineStage(std::make_shared<Affine>(device), StageId(index), 2, device, world.group(),
                                options);
}

TEST(RuntimeDeviceTypes, MustMatchAcrossStages) {
  std::vector<std::string> texts(2);
  const auto keep = [&](comm::World& world, const std::function<void()>& body) {
    try {
      body();
    } catch (const Error& e) {
      texts[world.rank().index()] = e.what();
    }
  };
  runtime::PipelineOptions options;
  options.loss = runtime::tensor_loss([](const at::Tensor& y, const at::Tensor&) { return y.sum(); });
  comm::run_thread_ranks(1, [&](comm::World& world) {
    keep(world, [&] {
      runtime::PipelineSchedule({stage_on(at::kCPU, 0, world), stage_on(at::kMeta, 1, world)},
                                "Interleaved1F1B", 2, options);
    });
  });
  EXPECT_THAT(texts[0], AllOf(HasSubstr("different kinds of device"), HasSubstr("stage 0 on cpu"),
                              HasSubstr("stage 1 on meta")));
  comm::run_thread_ranks(2, [&](comm::World& world) {
    const int rank = world.rank().value;
    keep(world, [&] {
      runtime::PipelineSchedule({stage_on(rank == 0 ? at::kCPU : at::kMeta, rank, world)}, "1F1B", 2,
                                options);
    });
  });
  EXPECT_THAT(texts, Each(AllOf(HasSubstr("kind of device"), HasSubstr("cpu on rank 0"),
                                HasSubstr("meta on rank 1"))));
}

TEST(RuntimeStage, RefusesDeviceThatIsNotAvailable) {
  if (torch::cuda::is_available()) GTEST_SKIP() << "this machine has a CUDA device";
  comm::run_thread_ranks(1, [](comm::World& world) {
    const auto make = [&] {
      runtime::PipelineStage(std::make_shared<Affine>(at::kCPU), StageId(0), 1, at::kCUDA, world.group());
    };
    EXPECT_THAT(error_message<UsageError>(make), AllOf(HasSubstr("cuda"), HasSubstr("use the device cpu")));
  });
}

}  // namespace
}  // namespace penstock::test
