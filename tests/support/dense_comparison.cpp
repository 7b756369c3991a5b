// Compares a pipeline with a dense run.
#include "support/dense_comparison.h"

#include "support/check.h"

#include <penstock/base/error.h>

#include <ATen/ATen.h>

#include <algorithm>

namespace penstock::test {
namespace {

void expect_tensor(const std::string& what, const at::Tensor& actual, const at::Tensor& expected, bool exact,
                   double tolerance) {
  if (actual.defined() != expected.defined())
    throw std::logic_error(what + (actual.defined() ? " is there and should not be" : " is missing"));
  if (!actual.defined()) return;
  const double scale = exact ? 0 : std::max(1.0, expected.abs().max().item<double>());
  const std::string difference = tensor_difference(actual, expected, 0, tolerance * scale);
  if (!difference.empty()) throw std::logic_error(what + " differs: " + difference);
}

void expect_tensors(const std::string& what, const std::vector<value::NamedTensor>& actual,
                    const std::vector<value::NamedTensor>& expected, bool exact, double tolerance) {
  CHECK_SAME(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i)
    expect_tensor(what + " " + expected[i].name, actual[i].tensor, expected[i].tensor, exact, tolerance);
}

// Whether every stage accumulates its gradients in the order of microbatches, like the dense run: only then
// are sums bitwise equal. (LoopedBFS, for example, runs its backward passes in reverse.)
bool in_dense_order(const schedule::Program& program) {
  std::vector<int> next(static_cast<std::size_t>(program.num_stages()), 0);
  bool ordered = true;
  for (int rank = 0; rank < program.ranks(); ++rank) {
    for (const schedule::Action& action : program.of(Rank(rank))) {
      for_each_part(action, [&](const schedule::Action& part) {
        if (part.kind() != schedule::ActionKind::Backward &&
            part.kind() != schedule::ActionKind::BackwardWeight)
          return;
        ordered = ordered && part.microbatch().value == next[part.stage().index()]++;
      });
    }
  }
  return ordered;
}

}  // namespace

std::string Case::text() const {
  return std::string(to_string(kind)) + ", " + std::to_string(stages_per_rank) + " stages a rank, " +
         std::to_string(microbatches) + " microbatches of " + std::to_string(rows) + " rows";
}

bool legal(const Case& test, int ranks) {
  try {
    check_shape(test.kind, {ranks, test.stages_per_rank, test.microbatches});
    return true;
  } catch (const UsageError&) {
    return false;
  }
}

std::vector<runtime::PipelineStage> stages_for(const PipelineModel& model, const comm::Group& group,
                                               schedule::ScheduleKind kind, int stages_per_rank) {
  const int stages = group.size() * stages_per_rank;
  const auto modules = model.make(stages);
  const schedule::Placement placement =
      schedule::Placement::make(group.size(), stages, info_of(kind).placement);
  std::vector<runtime::PipelineStage> mine;
  for (const StageId stage : placement.stages_of(Rank(group.rank())))
    mine.emplace_back(modules[stage.index()], stage, stages, at::kCPU, group);
  return mine;
}

runtime::PipelineOptions options_for(const PipelineModel& model, int stages) {
  runtime::PipelineOptions options;
  options.loss = model.loss;
  options.skips = model.skips(stages);
  options.shared = model.shared(stages);
  return options;
}

void expect_dense(const PipelineModel& model, const Case& test, const DenseRun& dense, comm::World& world,
                  int steps, std::uint64_t seed) {
  const comm::Group& group = world.group();
  const int stages = group.size() * test.stages_per_rank;
  runtime::PipelineOptions options = options_for(model, stages);
  options.seed = seed;
  runtime::PipelineSchedule pipeline(stages_for(model, group, test.kind, test.stages_per_rank), test.kind,
                                     test.microbatches, options);
  const bool exact = model.exact && in_dense_order(pipeline.program());
  for (int step = 0; step < steps; ++step) {
    const runtime::StepResult result = step_on(pipeline, model.batch(test.rows));
    const auto at_step = static_cast<std::size_t>(step);
    const double tolerance = step == 0 ? 1e-5 : 1e-4;  // training amplifies rounding differences
    const std::string when = model.name + ", " + test.text() + ", step " + std::to_string(step) + ": ";
    for (const runtime::PipelineStage& stage : pipeline.stages()) {
      const auto s = stage.index().index();
      const std::string where = when + "stage " + std::to_string(s) + " ";
      if (stage.is_last()) {
        for (std::size_t m = 0; m < result.losses.size(); ++m)
          expect_tensor(where + "loss", result.losses[m], dense.losses[at_step][m], exact, tolerance);
        CHECK_SAME(result.losses.size(), dense.losses[at_step].size());
        const auto outputs = value::tensors_of(result.outputs),
                   expected = value::tensors_of(dense.outputs[at_step]);
        CHECK_SAME(outputs.size(), expected.size());
        for (std::size_t i = 0; i < outputs.size(); ++i)
          expect_tensor(where + "output", outputs[i], expected[i], exact, tolerance);
      }
      if (step == 0)
        expect_tensors(where + "gradient of", snapshot_grads(stage.module()), dense.gradients[s], exact,
                       tolerance);
      sgd_step(stage.module());
    }
  }
  for (const runtime::PipelineStage& stage : pipeline.stages()) {
    const auto s = stage.index().index();
    const std::string where =
        model.name + ", " + test.text() + ": at the end, stage " + std::to_string(s) + " ";
    expect_tensors(where + "parameter", snapshot(stage.module().parameters()), dense.parameters[s], exact,
                   1e-4);
    expect_tensors(where + "buffer", snapshot(stage.module().buffers()), dense.buffers[s], exact, 1e-4);
  }
}

}  // namespace penstock::test
