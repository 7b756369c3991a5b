// Trains the stage models on thread ranks with a device each, or on the CPU.
#pragma once

#include "simulated_device_test.h"
#include "support/dense_comparison.h"
#include "support/models/stage_models.h"

#include <penstock/comm/thread_ranks.h>
#include <penstock/runtime/pipeline.h>

#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace penstock::test {

//! The values of a batch on a device.
inline TestBatch batch_on(c10::Device device, TestBatch batch) {
  const auto moved = [&](const at::Tensor& tensor) { return tensor.to(device); };
  for (c10::IValue& arg : batch.args) arg = value::map_tensors(arg, moved);
  batch.target = value::map_tensors(batch.target, moved);
  for (auto& [name, arg] : batch.options.kwargs) arg = value::map_tensors(arg, moved);
  for (auto& [stage, kwargs] : batch.options.stage_kwargs) {
    for (auto& [name, arg] : kwargs) arg = value::map_tensors(arg, moved);
  }
  return batch;
}

struct PipelineRun {
  PipelineModel model;
  schedule::ScheduleKind kind = schedule::ScheduleKind::OneFOneB;
  int ranks = 2;
  int stages_per_rank = 1;
  int microbatches = 4;
  int steps = 3;
  runtime::StageOptions stage_options{};
  std::function<void(runtime::PipelineOptions&)> change_options = [](runtime::PipelineOptions&) {};
  //! Called on each rank before and after each step.
  std::function<void(comm::World&, int step)> before_step = [](comm::World&, int) {};
  std::function<void(comm::World&, int step, const runtime::StepResult&)> after_step =
      [](comm::World&, int, const runtime::StepResult&) {};
  bool clips = false;
};

struct TrainingOutcome {
  std::vector<double> losses;
  std::map<std::string, at::Tensor> parameters;  //!< after the last step, on the CPU, by stage and name
};

inline std::vector<runtime::PipelineStage> stages_on(c10::Device device, const PipelineRun& run,
                                                     const comm::Group& group) {
  const int stages = group.size() * run.stages_per_rank;
  const auto modules = [&] {
    static std::mutex mutex;  // models draw their values from the default generator
    const std::lock_guard lock(mutex);
    return run.model.make(stages);
  }();
  const schedule::Placement placement =
      schedule::Placement::make(group.size(), stages, info_of(run.kind).placement);
  std::vector<runtime::PipelineStage> local;
  for (const StageId stage : placement.stages_of(Rank(group.rank())))
    local.emplace_back(modules[stage.index()], stage, stages, device, group, run.stage_options);
  return local;
}

inline TrainingOutcome train_pipeline(const PipelineRun& run, c10::DeviceType type) {
  TrainingOutcome outcome;
  std::mutex mutex;
  comm::run_thread_ranks(run.ranks,
                         [&](comm::World& world) {
                           runtime::PipelineOptions options =
                               options_for(run.model, run.ranks * run.stages_per_rank);
                           options.seed = 9;
                           run.change_options(options);
                           runtime::PipelineSchedule pipeline(stages_on(world.device(), run, world.group()),
                                                              run.kind, run.microbatches, options);
                           const TestBatch batch = batch_on(world.device(), run.model.batch(10));
                           for (int step = 0; step < run.steps; ++step) {
                             run.before_step(world, step);
                             const runtime::StepResult result = step_on(pipeline, batch);
                             run.after_step(world, step, result);
                             if (run.clips) pipeline.clip_grad_norm(0.5);
                             if (result.loss.defined()) {
                               if (!result.loss.is_cpu())
                                 throw std::logic_error("the loss is not on the CPU");
                               const std::lock_guard lock(mutex);
                               outcome.losses.push_back(result.loss.item<double>());
                             }
                             for (const runtime::PipelineStage& stage : pipeline.stages())
                               sgd_step(stage.module());
                           }
                           const std::lock_guard lock(mutex);
                           for (const runtime::PipelineStage& stage : pipeline.stages()) {
                             for (const value::NamedTensor& item : stage.module().parameters())
                               outcome.parameters[std::to_string(stage.index().value) + "." + item.name] =
                                   item.tensor.detach().cpu();
                           }
                         },
                         {.device = type});
  return outcome;
}

inline void expect_same_training(const TrainingOutcome& actual, const TrainingOutcome& expected,
                                 double tolerance = 1e-5) {
  ASSERT_FALSE(expected.losses.empty());
  EXPECT_THAT(actual.losses, testing::Pointwise(testing::DoubleNear(tolerance), expected.losses));
  ASSERT_EQ(actual.parameters.size(), expected.parameters.size());
  for (const auto& [name, tensor] : expected.parameters)
    EXPECT_TRUE(at::allclose(actual.parameters.at(name), tensor, 1e-4, tolerance)) << name;
}

}  // namespace penstock::test
