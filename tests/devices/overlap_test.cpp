// Overlaps of a forward and a backward pass on simulated devices: both run at the same time, with the losses
// of the CPU.
#include "device_pipeline.h"
#include "train/small_run.h"

#include <penstock/parallel/pipeline_data_parallel.h>
#include <penstock/tensor/mesh.h>

#include <ATen/Parallel.h>
#include <ATen/record_function.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/torch.h>

#include <array>
#include <atomic>
#include <set>
#include <string_view>

namespace penstock::test {
namespace {

// Memory of each device that every forward and backward pass writes to. Two writes race exactly if neither
// stream waits for the other.
std::array<at::Tensor, 4> marks;

void mark(const at::Tensor& near) {
  if (!near.is_cuda()) return;
  const torch::NoGradGuard no_grad;
  marks.at(static_cast<std::size_t>(near.device().index())).erfinv_();  // no other operator has this name
}

struct MarkedBackward : torch::autograd::Function<MarkedBackward> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) { return x.clone(); }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list gradients) {
    mark(gradients[0]);
    return gradients;
  }
};

struct MarkedStage : torch::nn::Module {
  explicit MarkedStage(int stage) {
    linear = register_module("linear", torch::nn::Linear(6, 6));
    const torch::NoGradGuard no_grad;
    for (at::Tensor& parameter : parameters())
      parameter.copy_((torch::arange(parameter.numel()) + stage).sin().view(parameter.sizes()) * 0.3);
  }
  at::Tensor forward(const at::Tensor& x) {
    mark(x);
    return MarkedBackward::apply(torch::tanh(linear(x)));
  }
  torch::nn::Linear linear{nullptr};
};

PipelineModel marked_model() {
  PipelineModel model = frozen_mlp();
  model.make = [](int stages) {
    std::vector<std::shared_ptr<runtime::StageModule>> modules;
    for (int stage = 0; stage < stages; ++stage)
      modules.push_back(runtime::make_stage_module(std::make_shared<MarkedStage>(stage)));
    return modules;
  };
  return model;
}

enum class Replicas { None, Replicated, Sharded };

struct OverlapRun {
  Replicas replicas = Replicas::None;
  bool recompute = false;
  bool replaces_forward = false;  //!< by a function that runs it
};

struct OverlapOutcome {
  std::vector<double> losses;
  int overlaps = 0;  //!< of all ranks and steps
};

constexpr int kPipelineRanks = 2, kStages = 4, kMicrobatches = 10;

std::vector<runtime::PipelineStage> stages_of(const OverlapRun& run, const tensor::DeviceMesh& mesh,
                                              c10::Device device, runtime::PipelineOptions& options) {
  const PipelineModel model = marked_model();
  const comm::Group& group = mesh.group("pp");
  const runtime::StageOptions stage_options{.recompute = run.recompute};
  if (run.replicas != Replicas::Sharded) {
    const PipelineRun shape{.model = model,
                            .kind = schedule::ScheduleKind::DualPipeV,
                            .stages_per_rank = kStages / kPipelineRanks,
                            .stage_options = stage_options};
    auto stages = stages_on(device, shape, group);
    if (run.replicas == Replicas::Replicated)
      options.data_parallel = std::make_shared<parallel::ReplicatedStages>(
          stages, mesh.group("dp"),
          parallel::ReplicateOptions{.bucket_bytes = 100, .first_bucket_bytes = 50});
    return stages;
  }
  const auto shards = std::make_shared<parallel::ShardedStages>(mesh.group("dp"));
  options.data_parallel = shards;
  std::vector<runtime::PipelineStage> stages;
  for (const int stage : {group.rank(), kStages - 1 - group.rank()}) {
    const auto module = runtime::make_stage_module(std::make_shared<MarkedStage>(stage));
    module->to(device);
    stages.emplace_back(shards->add(StageId(stage), module), StageId(stage), kStages, device, group,
                        stage_options);
  }
  return stages;
}

OverlapOutcome train_with(const OverlapRun& run, c10::DeviceType type) {
  OverlapOutcome outcome;
  std::mutex mutex;
  std::atomic<int> overlaps = 0;
  const int replicas = run.replicas == Replicas::None ? 1 : 2;
  const auto body = [&](comm::World& world) {
    const tensor::DeviceMesh mesh(world.group(), {kPipelineRanks, replicas}, {"pp", "dp"});
    const PipelineModel model = marked_model();
    runtime::PipelineOptions options = options_for(model, kStages);
    options.execution.before_action = [&](const schedule::Action& action) {
      if (action.kind() == schedule::ActionKind::Overlap) ++overlaps;
    };
    if (run.replaces_forward)
      options.execution.custom[schedule::ActionKind::Forward] =
          [](const schedule::Action&, const std::function<void()>& run_default) { run_default(); };
    const auto stages = stages_of(run, mesh, world.device(), options);
    runtime::PipelineSchedule pipeline(stages, schedule::ScheduleKind::DualPipeV, kMicrobatches, options);
    const TestBatch batch =
        batch_on(world.device(), replica_batch(model.batch(40), mesh.coordinate(1), replicas));
    for (int step = 0; step < 3; ++step) {
      const runtime::StepResult result = step_on(pipeline, batch);
      pipeline.clip_grad_norm(0.5);
      for (const runtime::PipelineStage& stage : pipeline.stages()) sgd_step(stage.module());
      if (!result.loss.defined()) continue;
      const std::lock_guard lock(mutex);
      outcome.losses.push_back(result.loss.item<double>());
    }
  };
  comm::run_thread_ranks(kPipelineRanks * replicas, body, {.device = type});
  outcome.overlaps = overlaps;
  std::sort(outcome.losses.begin(), outcome.losses.end());
  return outcome;
}

class DevicesOverlap : public SimulatedDeviceTest {
 protected:
  void SetUp() override {
    SimulatedDeviceTest::SetUp();
    if (IsSkipped()) return;
    at::set_num_threads(1);
    for (c10::DeviceIndex device = 0; device < 4; ++device)
      marks.at(static_cast<std::size_t>(device)) = torch::zeros({1}, c10::Device(c10::kCUDA, device));
    settle();
  }
};

// Also between microbatches that both were in an overlap before, and with the reductions of data parallelism.
TEST_F(DevicesOverlap, RunsEveryPairAtTheSameTime) {
  for (const Replicas replicas : {Replicas::None, Replicas::Replicated, Replicas::Sharded}) {
    for (const bool recompute : {false, true}) {
      SCOPED_TRACE(testing::Message() << static_cast<int>(replicas) << (recompute ? ", recomputed" : ""));
      const OverlapRun run{.replicas = replicas, .recompute = recompute};
      const OverlapOutcome expected = train_with(run, c10::kCPU);
      settle();
      const OverlapOutcome outcome = train_with(run, c10::kCUDA);
      EXPECT_THAT(outcome.losses, testing::Pointwise(testing::DoubleNear(1e-5), expected.losses));
      EXPECT_GT(outcome.overlaps, 3 * kMicrobatches);
      const std::vector<std::string> races = take_races();
      EXPECT_THAT(races, testing::Each("aten::erfinv after aten::erfinv"));
      EXPECT_EQ(races.size(), static_cast<std::size_t>(outcome.overlaps));
    }
  }
}

TEST_F(DevicesOverlap, RunsReplacedPartsOneAfterTheOther) {
  const OverlapOutcome outcome = train_with({.replaces_forward = true}, c10::kCUDA);
  EXPECT_GT(outcome.overlaps, 0);
  EXPECT_THAT(take_races(), testing::IsEmpty());
}

// The streams of each device on which forward passes ran.
std::mutex stream_mutex;
std::map<c10::DeviceIndex, std::set<c10::StreamId>> forward_streams;

std::unique_ptr<at::ObserverContext> note_stream(const at::RecordFunction& op) {
  if (std::string_view(op.name()) != "aten::scaled_dot_product_attention") return nullptr;
  const c10::impl::VirtualGuardImpl devices(c10::kCUDA);
  const c10::Device device = devices.getDevice();
  const std::lock_guard lock(stream_mutex);
  forward_streams[device.index()].insert(devices.getStream(device).id());
  return nullptr;
}

// The hook of `penstock train`, which follows all actions, does not stand in the way.
TEST_F(DevicesOverlap, TrainerOverlapsAlsoIfAHookFollows) {
  struct Hook : train::RankHook {
    explicit Hook(std::atomic<int>& counter) : parts(counter) {}
    void on_action(const schedule::Action& action, const train::RankState&) override {
      parts += action.kind() == schedule::ActionKind::Forward ? 1 : 0;
    }
    std::atomic<int>& parts;
  };
  for (const int dp : {1, 2}) {
    train::RunOptions options = with({2, dp, 2, 8, "DualPipeV"});
    options.steps = 3;
    options.batch = 16;
    const train::RunResult expected = small_run(options);
    forward_streams.clear();
    std::atomic<int> parts = 0;
    const auto callback =
        at::addGlobalCallback(at::RecordFunctionCallback(note_stream).scopes({at::RecordScope::FUNCTION}));
    const train::RunResult result = small_run(
        options, nullptr, false, 0, [&](Rank) { return std::make_unique<Hook>(parts); }, c10::kCUDA);
    at::removeCallback(callback);
    EXPECT_THAT(result.losses, testing::Pointwise(testing::DoubleNear(1e-5), expected.losses));
    EXPECT_EQ(parts, 2 * dp * 2 * 8 * 3);  // one per rank, stage, microbatch and step
    ASSERT_EQ(forward_streams.size(), static_cast<std::size_t>(2 * dp));
    for (const auto& [device, streams] : forward_streams) EXPECT_EQ(streams.size(), 3U) << device;
  }
}

}  // namespace
}  // namespace penstock::test
