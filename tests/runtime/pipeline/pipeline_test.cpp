// Features of a step in addition to plain training: accumulation, reductions, gradients of inputs, clipping,
// evaluation, data parallelism, replaced actions, custom programs, timelines.
#include "support/check.h"
#include "support/dense_comparison.h"
#include "support/models/stage_models.h"

#include <penstock/comm/thread_ranks.h>
#include <penstock/runtime/schedules.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <limits>

namespace penstock::test {
namespace {

constexpr int kRanks = 2;
constexpr int kMicrobatches = 4;
constexpr int kRows = 10;
constexpr auto kKind = schedule::ScheduleKind::OneFOneB;

// A model without randomness whose dense gradients equal those of one pass over the full batch.
PipelineModel plain() {
  PipelineModel model = skip_net();
  model.name = "plain";
  return model;
}

struct WholeBatch {
  std::vector<std::shared_ptr<runtime::StageModule>> modules = plain().make(kRanks);
  at::Tensor forward(const at::Tensor& x) {
    const runtime::StageResult first = modules[0]->forward({x}, {});
    return modules[1]->forward({first.output}, first.skips).output.toTensor();
  }
  at::Tensor gradient(int stage) {
    return modules[static_cast<std::size_t>(stage)]->parameters()[0].tensor.grad();
  }
};

runtime::PipelineSchedule make(comm::World& world, runtime::PipelineOptions options,
                               schedule::ScheduleKind kind = kKind) {
  return {stages_for(plain(), world.group(), kind, 1), kind, kMicrobatches, std::move(options)};
}

at::Tensor gradient_of(const runtime::PipelineSchedule& pipeline) {
  return pipeline.stages().front().module().parameters()[0].tensor.grad();
}

runtime::LossFunction sum_loss() {
  return runtime::tensor_loss(
      [](const at::Tensor& y, const at::Tensor& t) { return (y - t).square().sum(); });
}

TEST(RuntimeGradients, AccumulateOverSteps) {
  WholeBatch dense;
  const TestBatch batch = plain().batch(kRows);
  const at::Tensor loss = (dense.forward(batch.args[0].toTensor()) - batch.target.toTensor()).square().mean();
  (3 * loss).backward();
  comm::run_thread_ranks(kRanks, [&](comm::World& world) {
    runtime::PipelineSchedule pipeline = make(world, options_for(plain(), kRanks));
    for (int step = 0; step < 3; ++step) {
      const runtime::StepResult result = step_on(pipeline, batch);
      if (world.rank().value == 1) CHECK_CLOSE(result.loss, loss.detach(), 1e-5, 1e-6);
    }
    CHECK_CLOSE(gradient_of(pipeline), dense.gradient(world.rank().value), 1e-5, 1e-6);
  });
}

TEST(RuntimeGradients, OfTiedParametersAccumulateOverSteps) {
  const PipelineModel model = tied_transformer();
  const DenseRun dense = run_dense(model, kRanks, kMicrobatches, kRows, 1, 0);
  comm::run_thread_ranks(kRanks, [&](comm::World& world) {
    runtime::PipelineSchedule pipeline(stages_for(model, world.group(), kKind, 1), kKind, kMicrobatches,
                                       options_for(model, kRanks));
    for (int step = 0; step < 3; ++step) step_on(pipeline, model.batch(kRows));
    const auto grads = snapshot_grads(pipeline.stages().front().module());
    const auto& expected = dense.gradients[world.rank().index()];
    for (std::size_t i = 0; i < grads.size(); ++i)
      CHECK_CLOSE(grads[i].tensor, 3 * expected[i].tensor, 1e-5, 1e-6);
  });
}

TEST(RuntimeTiedParameters, StartFromValuesOfFirstStage) {
  const PipelineModel model = tied_transformer();
  comm::run_thread_ranks(kRanks, [&](comm::World& world) {
    auto stages = stages_for(model, world.group(), kKind, 1);
    const std::string name = world.rank().value == 0 ? "embed.table.weight" : "head.weight";
    at::Tensor mine = stages.front().parameter(name);
    const at::Tensor before = mine.detach().clone();
    if (world.rank().value == 1) {
      const at::NoGradGuard no_grad;
      mine.zero_();
    }
    runtime::PipelineSchedule pipeline(stages, kKind, kMicrobatches, options_for(model, kRanks));
    CHECK_TENSORS(mine, before);
  });
}

TEST(RuntimeLosses, FollowConfiguredReduction) {
  const TestBatch batch = plain().batch(kRows);
  struct Variant {
    runtime::LossReduction reduction;
    bool scale;
    double factor;  // of the sum of squares
  };
  const auto elements = static_cast<double>(batch.target.toTensor().numel());
  for (const Variant& variant : {Variant{runtime::LossReduction::sum(), true, 1.0},
                                 Variant{runtime::LossReduction::mean(), false, 1.0},
                                 Variant{runtime::LossReduction::weighted([](const c10::IValue& t) {
                                           return double(t.toTensor().size(0));
                                         }),
                                         true, 0}}) {
    WholeBatch dense;
    const at::Tensor squares = (dense.forward(batch.args[0].toTensor()) - batch.target.toTensor()).square();
    // Weighted: the loss is a mean over rows, and the weights are the numbers of rows.
    (variant.factor != 0 ? squares.sum() * variant.factor : squares.sum() / elements).backward();
    runtime::PipelineOptions options = options_for(plain(), kRanks);
    if (variant.factor != 0) options.loss = sum_loss();
    options.reduction = variant.reduction;
    options.scale_grads = variant.scale;
    comm::run_thread_ranks(kRanks, [&](comm::World& world) {
      runtime::PipelineSchedule pipeline = make(world, options);
      step_on(pipeline, batch);
      CHECK_CLOSE(gradient_of(pipeline), dense.gradient(world.rank().value), 1e-5, 1e-6);
    });
  }
}

TEST(RuntimeLosses, AreBroadcastOnRequest) {
  comm::run_thread_ranks(kRanks, [&](comm::World& world) {
    runtime::PipelineOptions options = options_for(plain(), kRanks);
    options.loss_on_all_ranks = true;
    runtime::PipelineSchedule pipeline = make(world, options);
    const runtime::StepResult result = step_on(pipeline, plain().batch(kRows));
    CHECK_SAME(result.losses.size(), std::size_t{kMicrobatches});
    const auto all = world.group().all_gather(result.loss.reshape({1}));
    CHECK_TENSORS(all[0], all[1]);
  });
}

TEST(RuntimeLosses, PassExtraArgumentsToLossFunction) {
  comm::run_thread_ranks(kRanks, [&](comm::World& world) {
    runtime::PipelineOptions options = options_for(plain(), kRanks);
    options.loss = [](const c10::IValue& output, const c10::IValue& target, const value::Kwargs& more) {
      return (output.toTensor() - target.toTensor()).square().mul(more.at("weight").toTensor()).mean();
    };
    TestBatch batch = plain().batch(kRows);
    batch.options.loss_kwargs["weight"] = at::zeros({kRows, 1});
    const runtime::StepResult result = step_on(make(world, options), batch);
    if (world.rank().value == 1) CHECK_SAME(result.loss.item<double>(), 0.0);
  });
}

TEST(RuntimeInputGradients, ReturnThroughStageBoundary) {
  const TestBatch batch = plain().batch(kRows);
  WholeBatch dense;
  const at::Tensor x = batch.args[0].toTensor().clone().requires_grad_(true);
  (dense.forward(x) - batch.target.toTensor()).square().mean().backward();
  for (const schedule::ScheduleKind kind :
       {schedule::ScheduleKind::GPipe, schedule::ScheduleKind::InterleavedZeroBubble}) {
    comm::run_thread_ranks(kRanks, [&](comm::World& world) {
      runtime::PipelineOptions options = options_for(plain(), kRanks);
      options.input_grads = true;
      runtime::PipelineSchedule pipeline = make(world, options, kind);
      const at::Tensor own = batch.args[0].toTensor().clone().requires_grad_(true);
      const runtime::StepResult result = pipeline.step({own}, batch.target);
      CHECK_SAME(result.input_grads.size(), std::size_t(world.rank().value == 0 ? 1 : 0));
      if (world.rank().value == 0) CHECK_CLOSE(result.input_grads[0].toTensor(), x.grad(), 1e-5, 1e-6);
      CHECK_SAME(own.grad().defined(), world.rank().value == 0);
      if (world.rank().value == 0) CHECK_CLOSE(own.grad(), x.grad(), 1e-5, 1e-6);
    });
  }
}

TEST(RuntimeClipping, UsesNormOverAllStages) {
  const PipelineModel model = tied_transformer();
  for (const double order : {2.0, 1.0, std::numeric_limits<double>::infinity()}) {
    const DenseRun dense = run_dense(model, kRanks, kMicrobatches, kRows, 1, 0);
    // The tied embedding counts once.
    std::vector<at::Tensor> all;
    for (const auto& stage : dense.gradients) {
      for (const value::NamedTensor& item : stage) {
        if (item.name == "head.weight") continue;
        all.push_back(at::zeros_like(item.tensor).requires_grad_(true));
        all.back().mutable_grad() = item.tensor.clone();
      }
    }
    const double norm = torch::nn::utils::clip_grad_norm_(all, 0.01, order);
    comm::run_thread_ranks(kRanks, [&](comm::World& world) {
      runtime::PipelineSchedule pipeline(stages_for(model, world.group(), kKind, 1), kKind, kMicrobatches,
                                         options_for(model, kRanks));
      step_on(pipeline, model.batch(kRows));
      CHECK_THAT(std::abs(pipeline.clip_grad_norm(0.01, order) - norm) < 1e-4 * norm);
      if (world.rank().value == 0) CHECK_CLOSE(gradient_of(pipeline), all[0].grad(), 1e-5, 1e-6);
    });
  }
}

// Both stages of the tied weight on one rank, with and without another rank.
TEST(RuntimeClipping, CountsTiedWeightOnceIfOneRankHoldsBothStages) {
  const PipelineModel model = tied_transformer();
  for (const int ranks : {1, 2}) {
    const auto kind = ranks == 1 ? schedule::ScheduleKind::Interleaved1F1B
                                 : schedule::ScheduleKind::ZBVZeroBubble;  // V: stages 0 and 3
    const int each = 2, stages = each * ranks;
    const DenseRun dense = run_dense(model, stages, kMicrobatches, kRows, 1, 0);
    std::vector<at::Tensor> all;
    std::map<std::string, at::Tensor> clipped;
    for (std::size_t stage = 0; stage < dense.gradients.size(); ++stage) {
      for (const value::NamedTensor& item : dense.gradients[stage]) {
        const at::Tensor parameter = at::zeros_like(item.tensor).requires_grad_(true);
        parameter.mutable_grad() = item.tensor.clone();
        if (item.name != "head.weight") all.push_back(parameter);
        clipped[std::to_string(stage) + item.name] = parameter;
      }
    }
    const double norm = torch::nn::utils::clip_grad_norm_(all, 0.01);
    clipped.at(std::to_string(stages - 1) + "head.weight") = clipped.at("0embed.table.weight");
    comm::run_thread_ranks(ranks, [&](comm::World& world) {
      runtime::PipelineSchedule pipeline(stages_for(model, world.group(), kind, each), kind, kMicrobatches,
                                         options_for(model, stages));
      step_on(pipeline, model.batch(kRows));
      CHECK_THAT(std::abs(pipeline.clip_grad_norm(0.01) - norm) < 1e-5 * norm);
      for (const runtime::PipelineStage& stage : pipeline.stages()) {
        for (const value::NamedTensor& item : stage.module().parameters())
          CHECK_CLOSE(item.tensor.grad() * 100,
                      clipped.at(std::to_string(stage.index().value) + item.name).grad() * 100, 1e-5, 1e-6);
      }
    });
  }
}

TEST(RuntimeEvaluation, ReturnsOutputsWithoutGradients) {
  const TestBatch batch = plain().batch(kRows);
  WholeBatch dense;
  const at::Tensor expected = dense.forward(batch.args[0].toTensor());
  for (const schedule::ScheduleKind kind :
       {schedule::ScheduleKind::GPipe, schedule::ScheduleKind::InterleavedZeroBubble}) {
    comm::run_thread_ranks(kRanks, [&](comm::World& world) {
      runtime::PipelineSchedule pipeline = make(world, options_for(plain(), kRanks), kind);
      for (int round = 0; round < 2; ++round) {
        const runtime::StepResult result = eval_on(pipeline, batch);
        if (world.rank().value == 1) CHECK_CLOSE(result.outputs.toTensor(), expected.detach(), 1e-5, 1e-6);
        if (world.rank().value == 1) CHECK_SAME(result.losses.size(), std::size_t{kMicrobatches});
        CHECK_THAT(!gradient_of(pipeline).defined());
        pipeline.eval(batch.args);  // without a target there are no losses
      }
      CHECK_SAME(pipeline.steps(), 0U);
      step_on(pipeline, batch);
    });
  }
}

// Records its calls.
struct Recorder : runtime::DataParallel {
  void unshard(StageId stage) override { calls.push_back("unshard " + std::to_string(stage.value)); }
  void reshard(StageId stage) override { calls.push_back("reshard " + std::to_string(stage.value)); }
  void before_backward(StageId stage, runtime::GradientSync sync) override {
    calls.push_back((sync == runtime::GradientSync::Reduce ? "sync " : "no_sync ") +
                    std::to_string(stage.value));
  }
  void reduce_grad(StageId stage) override { calls.push_back("reduce " + std::to_string(stage.value)); }
  std::vector<std::string> calls;
};

TEST(RuntimeDataParallelHooks, AreCalledInOrder) {
  for (const schedule::ScheduleKind kind :
       {schedule::ScheduleKind::OneFOneB, schedule::ScheduleKind::InterleavedZeroBubble}) {
    comm::run_thread_ranks(kRanks, [&](comm::World& world) {
      const auto recorder = std::make_shared<Recorder>();
      runtime::PipelineOptions options = options_for(plain(), kRanks);
      options.data_parallel = recorder;
      runtime::PipelineSchedule pipeline = make(world, options, kind);
      step_on(pipeline, plain().batch(kRows));
      const std::string s = std::to_string(world.rank().value);
      std::vector<std::string> without_sharding;
      for (const std::string& call : recorder->calls) {
        if (!call.ends_with("shard " + s)) without_sharding.push_back(call);
      }
      const std::vector<std::string> expected{"no_sync " + s, "no_sync " + s, "no_sync " + s, "sync " + s,
                                              "reduce " + s};
      CHECK_THAT(without_sharding == expected);
      CHECK_SAME(recorder->calls.front(), "unshard " + s);
    });
  }
}

TEST(RuntimeActions, CanBeReplaced) {
  comm::run_thread_ranks(kRanks, [&](comm::World& world) {
    int forwards = 0;
    runtime::PipelineOptions options = options_for(plain(), kRanks);
    options.execution.custom[schedule::ActionKind::Forward] = [&](const schedule::Action& action,
                                                                  const std::function<void()>& run_default) {
      CHECK_SAME(action.microbatch().value, forwards);
      ++forwards;
      run_default();
    };
    step_on(make(world, options), plain().batch(kRows));
    CHECK_SAME(forwards, kMicrobatches);
  });
}

TEST(RuntimeCustomPrograms, RunLikeBuiltInSchedules) {
  // All backward passes in reverse order: not a built-in schedule.
  const auto own = [] {
    schedule::Schedule schedule = make_schedule(schedule::ScheduleKind::GPipe, {kRanks, 1, kMicrobatches});
    schedule.name = "reversed";
    for (schedule::ActionList& list : schedule.ranks) {
      std::erase_if(list, [](const schedule::Action& action) {
        return action.kind() != schedule::ActionKind::Forward;
      });
      const int stage = list.front().stage().value;
      for (int m = kMicrobatches; m-- > 0;)
        list.push_back(schedule::Action::backward(StageId(stage), MicrobatchId(m)));
    }
    return schedule;
  };
  WholeBatch dense;
  const TestBatch batch = plain().batch(kRows);
  (dense.forward(batch.args[0].toTensor()) - batch.target.toTensor()).square().mean().backward();
  comm::run_thread_ranks(kRanks, [&](comm::World& world) {
    runtime::PipelineSchedule pipeline(stages_for(plain(), world.group(), kKind, 1), own(),
                                       options_for(plain(), kRanks));
    const runtime::StepResult result = step_on(pipeline, batch);
    CHECK_CLOSE(gradient_of(pipeline), dense.gradient(world.rank().value), 1e-5, 1e-6);
    CHECK_SAME(result.timeline.name, "reversed");
    runtime::PipelineSchedule again(stages_for(plain(), world.group(), kKind, 1), pipeline.program(),
                                    options_for(plain(), kRanks));
    step_on(again, batch);
    CHECK_TENSORS(gradient_of(again), gradient_of(pipeline));
  });
}

TEST(RuntimeTimelines, ContainEveryActionOfRankInOrder) {
  comm::run_thread_ranks(kRanks, [&](comm::World& world) {
    runtime::PipelineSchedule pipeline = make(world, options_for(plain(), kRanks));
    const schedule::Timeline timeline = step_on(pipeline, plain().batch(kRows)).timeline;
    const auto& mine = timeline.ranks[world.rank().index()];
    const schedule::ActionList& program = pipeline.program().of(world.rank());
    CHECK_SAME(mine.size(), program.size());
    double before = 0;
    for (std::size_t i = 0; i < mine.size(); ++i) {
      CHECK_THAT(mine[i].action == program[i]);
      CHECK_THAT(before <= mine[i].start && mine[i].start <= mine[i].end);
      before = mine[i].end;
    }
  });
}

TEST(RuntimeUserWeightBackward, RunsInWeightBackward) {
  for (const schedule::ScheduleKind kind :
       {schedule::ScheduleKind::InterleavedZeroBubble, schedule::ScheduleKind::OneFOneB}) {
    comm::run_thread_ranks(kRanks, [&](comm::World& world) {
      int built = 0, run = 0;
      runtime::StageOptions stage_options;
      stage_options.weight_work = [&] {
        ++built;
        return [&] { ++run; };
      };
      const auto modules = plain().make(kRanks);
      const int rank = world.rank().value;
      const runtime::PipelineStage stage(modules[static_cast<std::size_t>(rank)], StageId(rank), kRanks,
                                         at::kCPU, world.group(), stage_options);
      runtime::PipelineSchedule pipeline({stage}, kind, kMicrobatches, options_for(plain(), kRanks));
      step_on(pipeline, plain().batch(kRows));
      CHECK_SAME(built, kMicrobatches);
      CHECK_SAME(run, kMicrobatches);
    });
  }
}

// Dropout must repeat in the second run of each forward, and hooks and splits must behave as in a plain
// stage.
TEST(RuntimeRecomputation, KeepsGradientsUnchanged) {
  at::set_num_threads(1);
  for (const PipelineModel& model : {mlp(), skip_net(), many_values()}) {
    const DenseRun dense = run_dense(model, kRanks, kMicrobatches, kRows, 1, 5);
    for (const schedule::ScheduleKind kind :
         {schedule::ScheduleKind::OneFOneB, schedule::ScheduleKind::InterleavedZeroBubble}) {
      comm::run_thread_ranks(kRanks, [&](comm::World& world) {
        const auto rank = world.rank().index();
        runtime::StageOptions stage_options;
        stage_options.recompute = true;
        const runtime::PipelineStage stage(model.make(kRanks)[rank], StageId(world.rank().value), kRanks,
                                           at::kCPU, world.group(), stage_options);
        runtime::PipelineOptions options = options_for(model, kRanks);
        options.seed = 5;
        runtime::PipelineSchedule pipeline({stage}, kind, kMicrobatches, options);
        step_on(pipeline, model.batch(kRows));
        const auto grads = snapshot_grads(stage.module());
        for (std::size_t i = 0; i < grads.size(); ++i) {
          CHECK_SAME(grads[i].tensor.defined(), dense.gradients[rank][i].tensor.defined());
          if (grads[i].tensor.defined()) CHECK_TENSORS(grads[i].tensor, dense.gradients[rank][i].tensor);
        }
      });
    }
  }
}

TEST(RuntimeParameterHooks, FireOncePerMicrobatch) {
  for (const schedule::ScheduleKind kind :
       {schedule::ScheduleKind::InterleavedZeroBubble, schedule::ScheduleKind::OneFOneB}) {
    comm::run_thread_ranks(kRanks, [&](comm::World& world) {
      auto stages = stages_for(plain(), world.group(), kind, 1);
      int fired = 0;
      stages.front().module().parameters()[0].tensor.register_hook([&](const at::Tensor&) { ++fired; });
      runtime::PipelineSchedule pipeline(stages, kind, kMicrobatches, options_for(plain(), kRanks));
      step_on(pipeline, plain().batch(kRows));
      CHECK_SAME(fired, kMicrobatches);
    });
  }
}

}  // namespace
}  // namespace penstock::test
