// Pipelines on simulated devices: the losses of the CPU, the order of streams, host syncs, timings.
#include "base/log_line.h"
#include "device_pipeline.h"
#include "support/error_message.h"
#include "support/same_bits.h"

#include <penstock/base/error.h>
#include <penstock/runtime/random.h>
#include <penstock/runtime/stage_profile.h>

#include <ATen/autocast_mode.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/torch.h>

#include <algorithm>
#include <atomic>
#include <thread>

namespace penstock::test {
namespace {

using schedule::ScheduleKind;

class DevicesRuntime : public SimulatedDeviceTest {};

PipelineRun run_of(const PipelineModel& model, ScheduleKind kind) {
  const schedule::ScheduleInfo& info = info_of(kind);
  PipelineRun run{.model = model, .kind = kind};
  run.stages_per_rank = info.only_stages_per_rank.value_or(info.default_stages_per_rank);
  return run;
}

TEST_F(DevicesRuntime, EveryScheduleGivesLossesOfCpu) {
  int schedules = 0;
  for (const schedule::ScheduleInfo& info : schedule::schedule_infos()) {
    if (!info.has_backward) continue;
    for (const PipelineModel& model : {frozen_mlp(), tied_transformer(), skip_net()}) {
      SCOPED_TRACE(std::string(info.name) + " with " + model.name);
      const PipelineRun run = run_of(model, info.kind);
      expect_same_training(train_pipeline(run, c10::kCUDA), train_pipeline(run, c10::kCPU));
    }
    ++schedules;
  }
  EXPECT_GE(schedules, 7);
}

TEST_F(DevicesRuntime, EveryKindOfModelGivesLossesOfCpu) {
  for (const PipelineModel& model : all_models()) {
    if (model.name == mlp().name) continue;  // its dropout depends on the generator of the device
    SCOPED_TRACE(model.name);
    PipelineRun run = run_of(model, ScheduleKind::OneFOneB);
    run.ranks = 3;
    run.clips = true;
    expect_same_training(train_pipeline(run, c10::kCUDA), train_pipeline(run, c10::kCPU));
  }
}

TEST_F(DevicesRuntime, ShapeModesGiveLossesOfCpu) {
  for (const runtime::ShapeMode mode : {runtime::ShapeMode::Static, runtime::ShapeMode::Dynamic}) {
    SCOPED_TRACE(to_string(mode));
    PipelineRun run = run_of(many_values(), ScheduleKind::Interleaved1F1B);
    run.change_options = [&](runtime::PipelineOptions& options) { options.shapes = mode; };
    expect_same_training(train_pipeline(run, c10::kCUDA), train_pipeline(run, c10::kCPU));
  }
}

TEST_F(DevicesRuntime, DropoutDependsNeitherOnScheduleNorOnRecomputation) {
  PipelineRun one_rank = run_of(mlp(), ScheduleKind::Interleaved1F1B);
  one_rank.ranks = 1;
  one_rank.stages_per_rank = 4;
  const TrainingOutcome expected = train_pipeline(one_rank, c10::kCUDA);
  for (const ScheduleKind kind :
       {ScheduleKind::OneFOneB, ScheduleKind::ZBVZeroBubble, ScheduleKind::InterleavedZeroBubble}) {
    for (const bool recompute : {false, true}) {
      PipelineRun run = run_of(mlp(), kind);
      run.ranks = 4 / run.stages_per_rank;
      run.stage_options.recompute = recompute;
      SCOPED_TRACE(std::string(to_string(kind)) + (recompute ? ", recomputed" : ""));
      expect_same_training(train_pipeline(run, c10::kCUDA), expected);
    }
  }
}

// Computes in bfloat16 with the autocast of its device.
struct AutocastStage : torch::nn::Module {
  AutocastStage() : linear(register_module("linear", torch::nn::Linear(6, 6))) {}
  at::Tensor forward(const at::Tensor& x) {
    const c10::DeviceType type = x.device().type();
    at::autocast::set_autocast_dtype(type, at::kBFloat16);
    at::autocast::set_autocast_enabled(type, true);
    const at::Tensor y = linear(x);
    at::autocast::set_autocast_enabled(type, false);
    at::autocast::clear_cache();
    EXPECT_EQ(y.scalar_type(), at::kBFloat16);
    return torch::tanh(y.to(at::kFloat)) + x;
  }
  torch::nn::Linear linear;
};

TEST_F(DevicesRuntime, AutocastGivesLossesOfCpu) {
  PipelineModel model = frozen_mlp();
  model.make = [](int stages) {
    std::vector<std::shared_ptr<runtime::StageModule>> modules;
    for (int stage = 0; stage < stages; ++stage) {
      const auto module = std::make_shared<AutocastStage>();
      const torch::NoGradGuard no_grad;
      for (at::Tensor& parameter : module->parameters())
        parameter.copy_(torch::arange(parameter.numel()).sin().view(parameter.sizes()) * 0.3);
      modules.push_back(runtime::make_stage_module(module));
    }
    return modules;
  };
  for (const bool recompute : {false, true}) {
    PipelineRun run = run_of(model, ScheduleKind::ZBVZeroBubble);
    run.stage_options.recompute = recompute;
    expect_same_training(train_pipeline(run, c10::kCUDA), train_pipeline(run, c10::kCPU));
  }
}

// `native_dropout` takes no generator: its default one gets the state of the scope's.
TEST_F(DevicesRuntime, ScopeGivesKernelsItsNumbersAndKeepsDefaultGenerator) {
  torch::manual_seed(3);
  const at::Tensor x = torch::ones({64}, kCuda1);
  const runtime::RandomKey key{.seed = 5, .stage = StageId(1), .microbatch = MicrobatchId(2)};
  const auto draw = [&] {
    const runtime::RandomScope scope(key);
    const at::Tensor first = std::get<0>(at::native_dropout(x, 0.5, true));
    return at::stack({first, std::get<0>(at::native_dropout(x, 0.5, true)), at::rand({64}, kCuda1)}).cpu();
  };
  const at::Tensor first = draw();
  at::rand({7}, kCuda1);
  EXPECT_TRUE(same_bits(draw(), first));
  EXPECT_FALSE(at::equal(first[0], first[1]));
  torch::manual_seed(3);
  at::rand({7}, kCuda1);
  const at::Tensor expected = at::rand({7}, kCuda1).cpu();
  torch::manual_seed(3);
  at::rand({7}, kCuda1);
  draw();
  EXPECT_TRUE(same_bits(at::rand({7}, kCuda1).cpu(), expected));
}

PipelineModel with_measured_memory(PipelineModel model) {
  model.batch = [batch = model.batch](int rows) {
    TestBatch result = batch(rows);
    result.options.measure_memory = true;
    return result;
  };
  return model;
}

// One wait to read the times and, on the rank of the last stage, the losses; none for the memory.
TEST_F(DevicesRuntime, StepWaitsOnceForItsDevice) {
  for (const runtime::ShapeMode mode : {runtime::ShapeMode::Inferred, runtime::ShapeMode::Static}) {
    for (const ScheduleKind kind :
         {ScheduleKind::OneFOneB, ScheduleKind::DualPipeV, ScheduleKind::ZBVZeroBubble}) {
      PipelineRun run = run_of(with_measured_memory(tied_transformer()), kind);
      run.change_options = [&](runtime::PipelineOptions& options) { options.shapes = mode; };
      run.before_step = [](comm::World& world, int) {
        world.group().barrier();
        if (world.rank().value == 0) simulated::clear_records();
        world.group().barrier();
      };
      run.after_step = [&](comm::World& world, int step, const runtime::StepResult&) {
        world.group().barrier();
        if (world.rank().value != 0 || step == 0) return world.group().barrier();
        std::map<int, std::vector<std::string>> causes;
        for (const simulated::HostSync& sync : simulated::host_syncs())
          causes[sync.device].push_back(sync.cause);
        for (const auto& [device, found] : causes)
          EXPECT_LE(found.size(), 1u)
              << to_string(kind) << ", cuda:" << device << ": " << testing::PrintToString(found);
        world.group().barrier();
      };
      train_pipeline(run, c10::kCUDA);
    }
  }
}

TEST_F(DevicesRuntime, ClippingWaitsOnce) {
  comm::run_thread_ranks(2,
                         [](comm::World& world) {
                           const PipelineRun run = run_of(tied_transformer(), ScheduleKind::GPipe);
                           runtime::PipelineSchedule pipeline(stages_on(world.device(), run, world.group()),
                                                              run.kind, run.microbatches,
                                                              options_for(run.model, 2));
                           step_on(pipeline, batch_on(world.device(), run.model.batch(8)));
                           world.group().barrier();
                           if (world.rank().value == 0) simulated::clear_records();
                           world.group().barrier();
                           pipeline.clip_grad_norm(0.01);
                           world.group().barrier();
                           EXPECT_LE(simulated::host_syncs().size(), 2u);
                           world.group().barrier();
                         },
                         {.device = c10::kCUDA});
}

TEST_F(DevicesRuntime, MeanOverValidLabelsWaitsOnceForAllMicrobatches) {
  std::vector<c10::IValue> targets;
  for (int m = 0; m < 4; ++m) targets.emplace_back(torch::arange(m, 5, kCuda0));
  simulated::clear_records();
  const auto reduction = runtime::LossReduction::mean_over_valid_labels(4);
  const std::vector<double> weights = reduction.initial_gradients({}, targets);
  EXPECT_EQ(simulated::host_syncs().size(), 1u);
  EXPECT_THAT(weights, testing::ElementsAre(4 / 10.0, 3 / 10.0, 2 / 10.0, 1 / 10.0));
}

TEST_F(DevicesRuntime, EvaluationGivesLossOfCpu) {
  const auto loss_on = [](c10::DeviceType type) {
    double loss = 0;
    comm::run_thread_ranks(3,
                           [&](comm::World& world) {
                             PipelineRun run = run_of(batch_norm_cnn(), ScheduleKind::OneFOneB);
                             runtime::PipelineOptions options = options_for(run.model, 3);
                             options.loss_on_all_ranks = true;
                             runtime::PipelineSchedule pipeline(stages_on(world.device(), run, world.group()),
                                                                run.kind, 4, options);
                             const auto result =
                                 eval_on(pipeline, batch_on(world.device(), run.model.batch(8)));
                             if (!result.loss.is_cpu()) throw std::logic_error("the loss is not on the CPU");
                             if (world.rank().value == 0) loss = result.loss.item<double>();
                           },
                           {.device = type});
    return loss;
  };
  EXPECT_NEAR(loss_on(c10::kCUDA), loss_on(c10::kCPU), 1e-6);
}

// One rank without transfers, whose buffers other threads may free at any time.
TEST_F(DevicesRuntime, MemoryAfterActionsIsThatOfAllocator) {
  PipelineRun run = run_of(with_measured_memory(tied_transformer()), ScheduleKind::LoopedBFS);
  run.ranks = 1;
  std::vector<std::uint64_t> expected;
  run.change_options = [&](runtime::PipelineOptions& options) {
    for (const auto kind : {schedule::ActionKind::Forward, schedule::ActionKind::Backward}) {
      options.execution.custom[kind] = [&](const schedule::Action&,
                                           const std::function<void()>& run_default) {
        run_default();
        expected.push_back(simulated::memory_use(0).allocated);
      };
    }
  };
  run.before_step = [&](comm::World&, int) { expected = {simulated::memory_use(0).allocated}; };
  run.after_step = [&](comm::World&, int, const runtime::StepResult& result) {
    std::vector<std::uint64_t> measured;
    for (const schedule::MemorySample& sample : result.timeline.memory.at(0))
      measured.push_back(sample.bytes);
    EXPECT_EQ(measured, expected);
    const auto forwards = static_cast<std::ptrdiff_t>(measured.size() / 2);
    EXPECT_TRUE(std::is_sorted(measured.begin(), measured.begin() + forwards + 1));
    EXPECT_LT(measured.back(), measured[static_cast<std::size_t>(forwards)]);
  };
  train_pipeline(run, c10::kCUDA);
  EXPECT_EQ(expected.size(), 1U + 2U * 4U * static_cast<std::size_t>(run.stages_per_rank));
}

// Times of a device come from its events: an action does not take longer than the step.
TEST_F(DevicesRuntime, TimelineComesFromEvents) {
  PipelineRun run = run_of(tied_transformer(), ScheduleKind::ZBVZeroBubble);
  run.after_step = [](comm::World& world, int, const runtime::StepResult& result) {
    double last = 0;
    const auto& actions = result.timeline.ranks[static_cast<std::size_t>(world.rank().value)];
    EXPECT_GT(actions.size(), 10u);
    for (const schedule::TimedAction& timed : actions) {
      EXPECT_LE(timed.start, timed.end) << to_string(timed.action);
      EXPECT_GE(timed.start, last) << to_string(timed.action);
      last = timed.end;
    }
    for (const auto& [stage, profile] : runtime::profile_stages(result.timeline)) {
      EXPECT_GT(profile.forward, 0);
      EXPECT_GT(profile.backward_weight, 0);
    }
  };
  train_pipeline(run, c10::kCUDA);
}

TEST_F(DevicesRuntime, StreamsOfCallerAreUsed) {
  PipelineRun run = run_of(skip_net(), ScheduleKind::OneFOneB);
  const TrainingOutcome expected = train_pipeline(run, c10::kCPU);
  // Each step runs on another stream. The caller orders them.
  run.before_step = [](comm::World& world, int) {
    const c10::impl::VirtualGuardImpl guard(c10::kCUDA);
    const c10::Stream next = guard.getStreamFromGlobalPool(world.device());
    c10::Event ready(c10::kCUDA);
    ready.record(guard.getStream(world.device()));
    ready.block(next);
    guard.exchangeStream(next);
  };
  expect_same_training(train_pipeline(run, c10::kCUDA), expected);
}

// Notes the rank in log lines of its backward pass, which runs on a thread of autograd.
struct RankProbe : torch::nn::Module {
  RankProbe() : linear(register_module("linear", torch::nn::Linear(6, 6))) {}
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y = linear(x);
    const std::thread::id here = std::this_thread::get_id();
    y.register_hook([rank = log_rank(), here](const at::Tensor&) {
      EXPECT_NE(std::this_thread::get_id(), here);
      EXPECT_EQ(log_rank(), rank);
      ++hooks;
    });
    return y;
  }
  torch::nn::Linear linear;
  static inline std::atomic<int> hooks = 0;
};

TEST_F(DevicesRuntime, LogLinesOfBackwardPassesNameTheRank) {
  PipelineModel model = frozen_mlp();
  model.make = [](int stages) {
    std::vector<std::shared_ptr<runtime::StageModule>> modules;
    for (int stage = 0; stage < stages; ++stage)
      modules.push_back(runtime::make_stage_module(std::make_shared<RankProbe>()));
    return modules;
  };
  train_pipeline(run_of(model, ScheduleKind::OneFOneB), c10::kCUDA);
  EXPECT_EQ(RankProbe::hooks, 2 * 4 * 3);
}

TEST_F(DevicesRuntime, StageWithoutDeviceIndexIsOnDeviceOfRank) {
  comm::run_thread_ranks(2,
                         [](comm::World& world) {
                           const runtime::PipelineStage stage(mlp().make(1)[0], StageId(0), 1, c10::kCUDA,
                                                              world.group());
                           EXPECT_EQ(stage.device(), world.device());
                           EXPECT_EQ(stage.module().parameters()[0].tensor.device(), world.device());
                         },
                         {.device = c10::kCUDA});
}

TEST_F(DevicesRuntime, RefusesStageOnMissingDevice) {
  comm::run_thread_ranks(1, [](comm::World& world) {
    const auto make = [&] {
      runtime::PipelineStage(mlp().make(1)[0], StageId(0), 1, c10::Device(c10::kCUDA, 40), world.group());
    };
    EXPECT_THAT(error_message<UsageError>(make), testing::HasSubstr("there is no device cuda:40"));
  });
}

TEST_F(DevicesRuntime, ChangedShapesFailOnAllRanksIfStatic) {
  std::vector<std::exception_ptr> errors =
      comm::try_thread_ranks(2,
                             [](comm::World& world) {
                               const PipelineRun run = run_of(frozen_mlp(), ScheduleKind::GPipe);
                               runtime::PipelineOptions options = options_for(run.model, 2);
                               options.shapes = runtime::ShapeMode::Static;
                               runtime::PipelineSchedule pipeline(
                                   stages_on(world.device(), run, world.group()), run.kind, 4, options);
                               step_on(pipeline, batch_on(world.device(), run.model.batch(8)));
                               step_on(pipeline, batch_on(world.device(), run.model.batch(8)));
                               step_on(pipeline, batch_on(world.device(), run.model.batch(12)));
                             },
                             {.device = c10::kCUDA});
  EXPECT_THAT(error_message<ShapeError>([&] { std::rethrow_exception(errors[0]); }),
              testing::HasSubstr("the inputs changed after the first step"));
  EXPECT_ERROR(std::rethrow_exception(errors[1]), PeerFailed, "the inputs changed after the first step");
}

}  // namespace
}  // namespace penstock::test
