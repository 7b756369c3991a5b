// Measures a few steps, plans a schedule on rank 0 and broadcasts it.
#include "train/model/auto_plan.h"

#include "train/data/device_batch.h"
#include "train/loop/counted_rows.h"
#include "train/loop/measure.h"

#include <penstock/base/error.h>
#include <penstock/plan/auto_schedule.h>
#include <penstock/schedule/csv.h>

#include <ATen/core/ivalue.h>

#include <sstream>

namespace penstock::train {

Rows rows_of(const RunOptions& options, int replica, std::int64_t part) {
  const std::int64_t each = options.batch / options.parallel.dp, piece = each / options.accumulate;
  const std::int64_t begin = replica * each + part * piece;
  return {begin, begin + piece};
}

std::string plan_text(const schedule::Schedule& schedule) {
  return to_csv(schedule);
}

schedule::Schedule read_plan(const std::string& text) {
  std::istringstream in(text);
  schedule::Schedule schedule = schedule::read_csv(in).schedule();
  schedule.name = "Auto";
  return schedule;
}

schedule::Schedule auto_schedule(const ParallelOptions& options, const plan::Costs& costs,
                                 at::Device device) {
  plan::AutoOptions limits;
  if (!device.is_cpu()) limits.memory_cap = device_memory_bytes(device);
  try {
    return make_auto_schedule(options.pp, options.microbatches, costs, limits).schedule;
  } catch (const ScheduleError&) {
    if (!limits.memory_cap) throw;
    return make_auto_schedule(options.pp, options.microbatches, costs).schedule;
  }
}

schedule::Schedule plan_schedule(const tensor::DeviceMesh& mesh, at::Device device, const Model& model,
                                 const ModelSplit& split, const DataSource& data, const RunOptions& options,
                                 Progress& progress) {
  constexpr int steps = 3;  // the first includes allocations and connection setup
  const auto kind = options.parallel.stages_per_rank.value_or(1) > 1 ? schedule::ScheduleKind::LoopedBFS
                                                                     : schedule::ScheduleKind::OneFOneB;
  const Assembly trial =
      assemble(mesh, device, model, split, schedule_of(options.parallel, kind), data, options, progress);
  std::vector<schedule::Timeline> timelines;
  for (int i = 0; i < steps; ++i) {
    trial.observer->measure = i == 1;
    PassBatch pass = training_pass(data, options, 1, mesh.group("dp").rank(), 0);
    pass.batch = to_device(std::move(pass.batch), device);
    const runtime::StepResult result =
        trial.pipeline->step(pass.batch.args, pass.target(), {.kwargs = pass.batch.kwargs});
    if (i > 0) timelines.push_back(gather_timeline(mesh.group("pp"), result.timeline));
  }
  const int stages = trial.pipeline->program().num_stages();
  const plan::Costs costs = measured_costs(timelines, gather_bytes(mesh.group("pp"), stages, trial.bytes()));
  progress.stages.clear();
  // Measured times differ between replicas, so world rank 0 decides for all.
  std::string text;
  if (mesh.all().rank() == 0) text = plan_text(auto_schedule(options.parallel, costs, device));
  return read_plan(mesh.all().broadcast_object(c10::IValue(text), 0).toStringRef());
}

}  // namespace penstock::train
