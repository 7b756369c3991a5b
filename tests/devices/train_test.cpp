// The trainer on thread ranks, each with a simulated device: the losses of the CPU, no race, few host syncs.
#include "base/text.h"
#include "simulated_device_test.h"
#include "support/error_message.h"
#include "support/mesh_ranks.h"
#include "support/same_bits.h"
#include "support/temp_dir.h"
#include "train/data/device_batch.h"
#include "train/small_run.h"

#include <penstock/base/error.h>
#include <penstock/checkpoint/checkpoint.h>
#include <penstock/checkpoint/safetensors.h>

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <functional>
#include <future>
#include <map>
#include <thread>

namespace penstock::test {
namespace {

using train::RunOptions;
using train::RunResult;
using train::Sharding;

class DevicesTrainer : public SimulatedDeviceTest {
 protected:
  void SetUp() override {
    SimulatedDeviceTest::SetUp();
    at::set_num_threads(1);
  }
};

class RecordingObserver : public train::Observer {
 public:
  void on_step(const train::StepRecord& record) override { records.push_back(record); }
  void on_evaluation(std::int64_t, double loss) override { evaluations.push_back(loss); }
  std::vector<train::StepRecord> records;
  std::vector<double> evaluations;
};

RunResult run_on(c10::DeviceType device, const RunOptions& options, double dropout = 0,
                 train::Observer* observer = nullptr, const HookFactory& hook = nullptr) {
  return small_run(options, observer, /*gather=*/true, dropout, hook, c10::Device(device));
}

RunOptions short_options(const Topology& topology) {
  RunOptions options = with(topology);
  options.steps = 6;
  options.grad_clip = 0.5;
  return options;
}

void expect_losses_of_cpu(const RunOptions& options) {
  const RunResult expected = run_on(c10::kCPU, options), result = run_on(c10::kCUDA, options);
  EXPECT_THAT(result.losses, testing::Pointwise(testing::DoubleNear(1e-5), expected.losses));
  ASSERT_EQ(result.parameters.size(), expected.parameters.size());
  for (const auto& [name, tensor] : expected.parameters)
    EXPECT_TRUE(at::allclose(result.parameters.at(name), tensor, 1e-3, 1e-4)) << name;
}

std::string name_of(const Topology& topology) {
  return str_cat(topology.schedule, " pp ", topology.pp, " dp ", topology.dp, " tp ", topology.tp,
                 topology.sharding == Sharding::Full ? " sharded" : "");
}

TEST_F(DevicesTrainer, LossesAreThoseOfCpuInEveryTopology) {
  for (const Topology& topology :
       {Topology{1, 1, 1, 4, "1F1B"}, Topology{2, 1, 1, 4, "1F1B"}, Topology{2, 1, 1, 4, "GPipe"},
        Topology{4, 1, 1, 4, "ZB1P"}, Topology{2, 1, 2, 4, "Interleaved1F1B"},
        Topology{2, 1, 2, 4, "ZBVZeroBubble"}, Topology{2, 1, 2, 4, "DualPipeV"},
        Topology{2, 2, 2, 4, "DualPipeV"}, Topology{2, 2, 2, 4, "DualPipeV", Sharding::Full},
        Topology{2, 1, 2, 8, "DualPipeV", Sharding::None, 2}, Topology{1, 2, 1, 4, "1F1B"},
        Topology{2, 2, 1, 2, "ZB1P"}, Topology{1, 2, 1, 4, "1F1B", Sharding::Full},
        Topology{2, 2, 2, 4, "ZBVZeroBubble", Sharding::Full},
        Topology{1, 1, 1, 2, "1F1B", Sharding::None, 2}, Topology{2, 1, 1, 2, "ZB1P", Sharding::None, 2},
        Topology{1, 2, 1, 2, "1F1B", Sharding::Full, 2}}) {
    SCOPED_TRACE(name_of(topology));
    expect_losses_of_cpu(short_options(topology));
  }
}

TEST_F(DevicesTrainer, LossesAreThoseOfCpuWithAccumulationAndRecomputation) {
  RunOptions options = short_options({2, 1, 1, 2, "1F1B"});
  options.accumulate = 2;
  options.parallel.recompute = true;
  options.optimizer.weight_decay = 0.1;
  expect_losses_of_cpu(options);
  options.optimizer = {.kind = train::OptimizerKind::Sgd, .momentum = 0.9};
  expect_losses_of_cpu(options);
}

// The generator of the device draws, by seed, step, stage and microbatch.
TEST_F(DevicesTrainer, DropoutDoesNotDependOnScheduleOrRecomputation) {
  const std::vector<double> expected = run_on(c10::kCUDA, short_options({2, 1, 1, 4, "1F1B"}), 0.1).losses;
  RunOptions other = short_options({2, 1, 1, 4, "ZB1P"});
  EXPECT_THAT(run_on(c10::kCUDA, other, 0.1).losses, testing::Pointwise(testing::DoubleNear(1e-5), expected));
  other.parallel.recompute = true;
  EXPECT_THAT(run_on(c10::kCUDA, other, 0.1).losses, testing::Pointwise(testing::DoubleNear(1e-5), expected));
  EXPECT_NE(run_on(c10::kCUDA, other).losses, expected);
}

TEST_F(DevicesTrainer, Bfloat16UsesAutocastOfDevice) {
  RunOptions options = short_options({2, 1, 1, 4, "1F1B"});
  const std::vector<double> exact = run_on(c10::kCUDA, options).losses;
  options.precision = train::Precision::Bfloat16;
  const std::vector<double> losses = run_on(c10::kCUDA, options).losses;
  EXPECT_NE(losses, exact);
  for (std::size_t i = 0; i < losses.size(); ++i) EXPECT_NEAR(losses[i], exact[i], 0.05 * exact[i]) << i;
}

TEST_F(DevicesTrainer, ResumesCheckpointsOfOtherDevices) {
  const std::vector<double> expected = run_on(c10::kCPU, short_options({1, 1, 1, 4, "1F1B"})).losses;
  for (const auto& [first, second] : {std::pair{c10::kCPU, c10::kCUDA}, {c10::kCUDA, c10::kCPU}}) {
    const TempDir dir;
    RunOptions options = short_options({2, 1, 1, 4, "1F1B"});
    options.checkpoint.directory = dir / "saved";
    options.steps = 3;
    run_on(first, options);
    options = with({1, 2, 1, 4, "1F1B", Sharding::Full}, options);
    options.steps = 6;
    options.checkpoint.resume = true;
    const RunResult rest = run_on(second, options);
    EXPECT_EQ(rest.first_step, 4);
    EXPECT_THAT(rest.losses, testing::Pointwise(testing::DoubleNear(1e-5),
                                                std::vector(expected.begin() + 3, expected.end())));
  }
}

// Step 3 is copied while step 4 runs.
TEST_F(DevicesTrainer, ResumesBitwiseFromCopiesNextToSteps) {
  for (const Topology& topology : {Topology{1, 1, 1, 4, "1F1B"}, Topology{2, 1, 1, 4, "ZB1P"},
                                   Topology{2, 2, 1, 2, "1F1B", Sharding::Full}}) {
    SCOPED_TRACE(name_of(topology));
    const TempDir dir;
    RunOptions options = short_options(topology);
    const std::vector<double> on_cpu = run_on(c10::kCPU, options).losses;
    options.checkpoint = {.directory = dir / "saved", .every = 1, .keep = 6};
    const RunResult expected = run_on(c10::kCUDA, options);
    EXPECT_THAT(expected.losses, testing::Pointwise(testing::DoubleNear(1e-5), on_cpu));
    for (std::int64_t step = 4; step <= 6; ++step)
      std::filesystem::remove_all(*options.checkpoint.directory / checkpoint::checkpoint_name(step));
    options.checkpoint.resume = true;
    const RunResult rest = run_on(c10::kCUDA, options);
    EXPECT_EQ(rest.first_step, 4);
    EXPECT_EQ(rest.losses, std::vector(expected.losses.begin() + 3, expected.losses.end()));
    for (const auto& [name, tensor] : expected.parameters)
      EXPECT_TRUE(same_bits(rest.parameters.at(name), tensor)) << name;
  }
}

TEST_F(DevicesTrainer, ValidationLossIsThatOfCpu) {
  RunOptions options = short_options({2, 2, 1, 2, "1F1B"});
  options.eval_every = 3;
  options.eval_batches = 3;
  RecordingObserver host, device;
  run_on(c10::kCPU, options, 0, &host);
  run_on(c10::kCUDA, options, 0, &device);
  ASSERT_EQ(device.evaluations.size(), 2U);
  EXPECT_THAT(device.evaluations, testing::Pointwise(testing::DoubleNear(1e-5), host.evaluations));
}

TEST_F(DevicesTrainer, PeakMemoryIsThatOfDevice) {
  RecordingObserver observer;
  run_on(c10::kCUDA, short_options({2, 1, 1, 4, "1F1B"}), 0, &observer);
  const std::vector<std::uint64_t>& peak = observer.records.back().peak_memory;
  ASSERT_EQ(peak.size(), 2U);
  for (std::size_t rank = 0; rank < 2; ++rank) {
    EXPECT_GT(peak[rank], 0U);
    EXPECT_LE(peak[rank], simulated::memory_use(static_cast<c10::DeviceIndex>(rank)).peak);
  }
}

TEST_F(DevicesTrainer, PlansScheduleFromTimesOnDevice) {
  RunOptions options = short_options({2, 1, 1, 4, "auto"});
  const TempDir dir;
  options.profile = dir / "costs.toml";
  const RunResult result = run_on(c10::kCUDA, options);
  EXPECT_TRUE(result.plan.has_value());
  EXPECT_TRUE(std::filesystem::exists(dir / "costs.toml"));
  EXPECT_THAT(result.losses,
              testing::Pointwise(testing::DoubleNear(1e-5),
                                 run_on(c10::kCPU, short_options({2, 1, 1, 4, "1F1B"})).losses));
}

// Writes NaN to the parameters of stage 1 before step 3.
struct NanHook : train::RankHook {
  void on_phase(train::RunPhase phase, const train::RankState& state) override {
    if (phase != train::RunPhase::Step || state.step != 3) return;
    const at::NoGradGuard no_grad;
    for (const auto& [index, stage] : state.stages)
      if (index.value == 1)
        for (const value::NamedTensor& item : stage->parameters()) item.tensor.fill_(std::nan(""));
  }
};

TEST_F(DevicesTrainer, FindsValuesThatAreNotFinite) {
  RunOptions options = short_options({2, 1, 1, 4, "1F1B"});
  const HookFactory hook = [](Rank) { return std::make_unique<NanHook>(); };
  EXPECT_ERROR(run_on(c10::kCUDA, options, 0, nullptr, hook), train::RunError, "contains nan");
  options.on_nan = train::NanPolicy::Skip;
  options.log_every = 100;
  RecordingObserver observer;
  run_on(c10::kCUDA, options, 0, &observer, hook);
  ASSERT_EQ(observer.records.size(), 5U);  // the first step and those that were skipped
  EXPECT_TRUE(observer.records.back().skipped);
}

// Counts the host syncs on the device of a rank in each step.
struct SyncHook : train::RankHook {
  SyncHook(Rank of, std::vector<std::size_t>& into) : rank(of), counts(into) {}
  void on_phase(train::RunPhase phase, const train::RankState&) override {
    if (phase != train::RunPhase::Step && phase != train::RunPhase::End) return;
    const std::vector<simulated::HostSync> syncs = simulated::host_syncs();
    counts.push_back(static_cast<std::size_t>(std::count_if(
        syncs.begin(), syncs.end(), [&](const auto& sync) { return sync.device == rank.value; })));
  }
  Rank rank;
  std::vector<std::size_t>& counts;
};

// The causes of the host syncs so far on a device, and how often each occurred.
std::string sync_causes(std::size_t device) {
  std::map<std::string, int> counts;
  for (const simulated::HostSync& sync : simulated::host_syncs())
    if (sync.device == static_cast<c10::DeviceIndex>(device)) ++counts[sync.cause];
  std::string text = "syncs of cuda:" + std::to_string(device) + ":";
  for (const auto& [cause, count] : counts) text += " " + cause + " x" + std::to_string(count);
  return text;
}

//! A run on devices whose ranks have a hook each.
using HookedRun = std::function<void(const RunOptions&, const HookFactory&)>;

// Returns the number of host syncs of each step, by rank.
std::vector<std::vector<std::size_t>> syncs_per_step(const RunOptions& options, const HookedRun& run) {
  simulated::clear_records();
  std::vector<std::vector<std::size_t>> counts(static_cast<std::size_t>(options.parallel.ranks()));
  run(options, [&](Rank rank) { return std::make_unique<SyncHook>(rank, counts.at(rank.index())); });
  for (std::vector<std::size_t>& of_rank : counts) {
    for (std::size_t i = 0; i + 1 < of_rank.size(); ++i) of_rank[i] = of_rank[i + 1] - of_rank[i];
    of_rank.pop_back();
  }
  return counts;
}

const HookedRun run_gpt = [](const RunOptions& options, const HookFactory& hook) {
  run_on(c10::kCUDA, options, 0, nullptr, hook);
};

// The first step connects and warms up, and the last one is followed by the end of the run.
void expect_syncs_at_most(std::size_t most, const RunOptions& options, const HookedRun& run = run_gpt) {
  const std::vector<std::vector<std::size_t>> counts = syncs_per_step(options, run);
  for (std::size_t rank = 0; rank < counts.size(); ++rank)
    EXPECT_THAT(std::vector(counts[rank].begin() + 1, counts[rank].end() - 1),
                testing::Each(testing::Le(most)))
        << sync_causes(rank);
}

TEST_F(DevicesTrainer, HostSyncsPerStepAreBounded) {
  for (const Topology& topology :
       {Topology{1, 1, 1, 4, "1F1B"}, Topology{2, 1, 1, 4, "1F1B"}, Topology{2, 1, 2, 4, "ZBVZeroBubble"},
        Topology{1, 2, 1, 4, "1F1B"}, Topology{1, 2, 1, 4, "1F1B", Sharding::Optimizer},
        Topology{1, 2, 1, 4, "1F1B", Sharding::Gradients}, Topology{1, 2, 1, 4, "1F1B", Sharding::Full},
        Topology{2, 1, 1, 2, "1F1B", Sharding::None, 2}}) {
    SCOPED_TRACE(name_of(topology));
    RunOptions options = with(topology);
    options.steps = 6;
    expect_syncs_at_most(2, options);
    options.log_every = 100;
    expect_syncs_at_most(0, options);
    options.grad_clip = 0.5;
    expect_syncs_at_most(1, options);
  }
}

TEST_F(DevicesTrainer, HostSyncsPerStepAreBoundedWithAccumulationAndLossScale) {
  RunOptions options = with({2, 1, 1, 2, "1F1B"});
  options.steps = 6;
  options.accumulate = 2;
  expect_syncs_at_most(2, options);
  options.log_every = 100;
  expect_syncs_at_most(0, options);
  options.precision = train::Precision::Float16;
  expect_syncs_at_most(1, options);  // the scale depends on the norm
}

// Counts the host syncs of the thread that runs the steps.
struct ThreadSyncHook : train::RankHook {
  explicit ThreadSyncHook(std::vector<std::ptrdiff_t>& into) : counts(into) {}
  void on_phase(train::RunPhase phase, const train::RankState& state) override {
    if (phase != train::RunPhase::Step || state.step < 2) return;
    const std::vector<simulated::HostSync> syncs = simulated::host_syncs();
    counts.push_back(std::count_if(syncs.begin(), syncs.end(), [](const auto& sync) {
      return sync.thread == std::this_thread::get_id();
    }));
  }
  std::vector<std::ptrdiff_t>& counts;
};

TEST_F(DevicesTrainer, CheckpointsDoNotBlockHost) {
  const TempDir dir;
  RunOptions options = with({1, 1, 1, 4, "1F1B"});
  options.steps = 6;
  options.checkpoint = {.directory = dir / "saved", .every = 1};
  options.log_every = 100;
  std::vector<std::ptrdiff_t> counts;
  run_on(c10::kCUDA, options, 0, nullptr, [&](Rank) { return std::make_unique<ThreadSyncHook>(counts); });
  ASSERT_EQ(counts.size(), 5U);  // before steps 2 to 6
  EXPECT_THAT(counts, testing::Each(counts.front()));
}

// Writes to the first parameter at the start of step 3.
struct WriteHook : train::RankHook {
  void on_phase(train::RunPhase phase, const train::RankState& state) override {
    if (phase != train::RunPhase::Step || state.step != 3) return;
    const at::NoGradGuard no_grad;
    state.stages.begin()->second->parameters().front().tensor.zero_();
  }
};

// Only the update waits for the copies: a hook that changes a parameter before does not.
TEST_F(DevicesTrainer, CopiesOfCheckpointRunNextToStep) {
  const simulated::UnorderedEventWaits unordered;
  const TempDir dir;
  RunOptions options = short_options({1, 1, 1, 4, "1F1B"});
  options.checkpoint = {.directory = dir / "saved", .every = 1};
  run_on(c10::kCUDA, options);
  EXPECT_THAT(take_races(), testing::IsEmpty());
  options.checkpoint.directory = dir / "other";
  run_on(c10::kCUDA, options, 0, nullptr, [](Rank) { return std::make_unique<WriteHook>(); });
  EXPECT_THAT(take_races(), testing::ElementsAre("aten::zero_ after aten::copy_"));
}

std::vector<double> archive_losses(c10::DeviceType device, const std::string& name,
                                   train::ArchiveOptions archive, const RunOptions& options,
                                   const HookFactory& make_hook = nullptr) {
  const std::string folder = PENSTOCK_SOURCE_DIR "/tests/train/archives/";
  archive.file = folder + name + ".pt2";
  std::vector<double> losses;
  const auto body = [&](comm::World& world) {
    const train::ArchiveModel model = train::archive_model(archive);
    const std::string rows = name == "norm" ? "mlp" : name;
    const auto data = train::tensor_data(checkpoint::load_safetensors(folder + rows + ".safetensors"),
                                         {.positional = model.positional, .keywords = model.keywords});
    const auto hook = make_hook ? make_hook(world.rank()) : nullptr;
    const RunResult result = train::run(world, *model.model, *data, options, {.hook = hook.get()});
    if (world.rank().value == 0) losses = result.losses;
  };
  comm::run_thread_ranks(options.parallel.ranks(), body, {.device = c10::Device(device)});
  return losses;
}

RunOptions archive_options(const train::ParallelOptions& parallel) {
  RunOptions options;
  options.parallel = parallel;
  options.steps = 5;
  options.batch = 8;
  return options;
}

TEST_F(DevicesTrainer, HostSyncsPerStepAreBoundedWithClassWeightsAndAdapters) {
  RunOptions options =
      archive_options({.pp = 2, .schedule = schedule::ScheduleKind::OneFOneB, .microbatches = 4});
  train::LossOptions loss;
  loss.class_weights.assign(17, 1);
  loss.class_weights[3] = 2;
  const train::LoraOptions lora{.patterns = {"layers.*.up"}, .rank = 2};
  for (const train::ArchiveOptions& archive :
       {train::ArchiveOptions{.loss_options = loss}, train::ArchiveOptions{.lora = lora}}) {
    SCOPED_TRACE(archive.lora ? "adapters" : "class weights");
    const HookedRun run = [&](const RunOptions& run_options, const HookFactory& hook) {
      archive_losses(c10::kCUDA, "language", archive, run_options, hook);
    };
    options.log_every = 1;
    expect_syncs_at_most(2, options, run);
    options.log_every = 100;
    expect_syncs_at_most(0, options, run);
    EXPECT_THAT(archive_losses(c10::kCUDA, "language", archive, options),
                testing::Pointwise(testing::DoubleNear(1e-5),
                                   archive_losses(c10::kCPU, "language", archive, options)));
  }
}

TEST_F(DevicesTrainer, TrainsExportedModels) {
  using schedule::ScheduleKind;
  for (const train::ParallelOptions& parallel :
       {train::ParallelOptions{.schedule = ScheduleKind::GPipe, .microbatches = 2},
        train::ParallelOptions{.pp = 2, .schedule = ScheduleKind::OneFOneB, .microbatches = 2},
        train::ParallelOptions{.tp = 2, .schedule = ScheduleKind::GPipe, .microbatches = 2}}) {
    const RunOptions options = archive_options(parallel);
    for (const auto& [name, loss] :
         {std::pair{"language", train::LossKind::CrossEntropy}, {"mlp", train::LossKind::Mse}}) {
      SCOPED_TRACE(std::string(name) + " pp " + std::to_string(parallel.pp) + " tp " +
                   std::to_string(parallel.tp));
      const std::vector<double> expected =
          archive_losses(c10::kCPU, name, {.balance = pipe::BalanceBy::Parameters, .loss = loss}, options);
      for (const auto balance : {pipe::BalanceBy::Parameters, pipe::BalanceBy::MeasuredTime})
        EXPECT_THAT(archive_losses(c10::kCUDA, name, {.balance = balance, .loss = loss}, options),
                    testing::Pointwise(testing::DoubleNear(1e-5), expected));
    }
  }
}

// Replicas exchange running means without a wait of the host.
TEST_F(DevicesTrainer, HostSyncsPerStepAreBoundedWithBuffers) {
  RunOptions options =
      archive_options({.dp = 2, .schedule = schedule::ScheduleKind::GPipe, .microbatches = 2});
  options.log_every = 100;
  expect_syncs_at_most(0, options, [](const RunOptions& run_options, const HookFactory& hook) {
    archive_losses(c10::kCUDA, "norm", {.loss = train::LossKind::Mse}, run_options, hook);
  });
}

// The next forward pass changes the running means, so it waits for the copies.
TEST_F(DevicesTrainer, ForwardPassesWaitForCopiesOfBuffers) {
  const simulated::UnorderedEventWaits unordered;
  RunOptions options = archive_options({.schedule = schedule::ScheduleKind::GPipe, .microbatches = 2});
  const train::ArchiveOptions archive{.loss = train::LossKind::Mse};
  const std::vector<double> expected = archive_losses(c10::kCPU, "norm", archive, options);
  const TempDir dir;
  options.checkpoint = {.directory = dir / "saved", .every = 1};
  EXPECT_THAT(archive_losses(c10::kCUDA, "norm", archive, options),
              testing::Pointwise(testing::DoubleNear(1e-5), expected));
}

// The first rank launches its forward passes of step 3 while the last one waits before that step.
struct RunAheadHook : train::RankHook {
  RunAheadHook(Rank of, std::promise<void>& promise, std::future_status& found)
      : rank(of), launched(promise), status(found) {}
  void on_action(const schedule::Action&, const train::RankState& state) override {
    if (rank != Rank(0) || state.step != 3 || done) return;
    done = true;
    launched.set_value();
  }
  void on_phase(train::RunPhase phase, const train::RankState& state) override {
    if (rank == Rank(1) && phase == train::RunPhase::Step && state.step == 3)
      status = launched.get_future().wait_for(std::chrono::seconds(60));
  }
  bool follows(schedule::ActionKind kind) const override { return kind == schedule::ActionKind::Forward; }
  Rank rank;
  std::promise<void>& launched;
  std::future_status& status;
  bool done = false;
};

TEST_F(DevicesTrainer, RanksDoNotWaitForEachOtherAtStartOfStep) {
  RunOptions options = with({2, 1, 1, 2, "GPipe"});
  options.steps = 4;
  options.log_every = 100;
  std::promise<void> launched;
  std::future_status status = std::future_status::timeout;
  run_on(c10::kCUDA, options, 0, nullptr,
         [&](Rank rank) { return std::make_unique<RunAheadHook>(rank, launched, status); });
  EXPECT_EQ(status, std::future_status::ready);
}

// A batch goes to the device without blocking the host, and its tensors may be used at once.
TEST_F(DevicesTrainer, BatchesAreCopiedBesideComputation) {
  const at::Tensor values = numbers({64, 32}, 3);
  train::Batch batch{.args = {values}, .kwargs = {{"more", values + 1}}, .target = values + 2};
  batch = train::pinned(std::move(batch), kCuda1);
  EXPECT_TRUE(batch.args[0].toTensor().is_pinned());
  EXPECT_TRUE(batch.kwargs.at("more").toTensor().is_pinned());
  EXPECT_TRUE(batch.target.toTensor().is_pinned());
  for (int i = 0; i < 3; ++i) {
    const std::size_t syncs = simulated::host_syncs().size();
    train::Batch copy = train::to_device(batch, kCuda1);
    EXPECT_TRUE(copy.target.toTensor().is_cpu());
    EXPECT_EQ(simulated::host_syncs().size(), syncs);
    const at::Tensor sum = copy.args[0].toTensor() + copy.kwargs.at("more").toTensor();
    copy = {};  // the memory is used again only after the sum
    EXPECT_TRUE(at::equal(sum.cpu(), values + (values + 1)));
  }
}

// The loss frees the copy of the target, whose memory serves the next one.
TEST_F(DevicesTrainer, TargetsAreCopiedBesideComputation) {
  const runtime::LossFunction loss = train::with_target_on_device(runtime::tensor_loss(
      [](const at::Tensor& output, const at::Tensor& target) { return (output - target).square().sum(); }));
  const at::Tensor target = numbers({64, 32}, 3).pin_memory(), output = numbers({64, 32}, 4);
  const at::Tensor on_device = output.to(kCuda1);
  simulated::clear_records();
  std::vector<at::Tensor> losses;
  for (int i = 0; i < 3; ++i) losses.push_back(loss(on_device, target, {}));
  EXPECT_THAT(simulated::host_syncs(), testing::IsEmpty());
  for (const at::Tensor& value : losses)
    EXPECT_TRUE(at::allclose(value.cpu(), (output - target).square().sum()));
}

}  // namespace
}  // namespace penstock::test
