// The partitioner, the planner, and schedules generated for given costs.
#include "base/option_ranges.h"
#include "plan/bindings.h"

#include <penstock/base/error.h>
#include <penstock/plan/auto_schedule.h>
#include <penstock/plan/partition.h>
#include <penstock/plan/planner.h>

#include <pybind11/stl.h>

namespace penstock::python {
namespace {

using namespace py::literals;
using Numbers = std::vector<std::int64_t>;
using Bytes = std::optional<std::uint64_t>;

std::vector<int> counts_of(const Numbers& numbers, const char* option, std::int64_t most = kMaxCount) {
  std::vector<int> counts;
  for (const std::int64_t number : numbers) counts.push_back(count_option(number, option, most));
  return counts;
}

py::object partition(const py::sequence& layers, const Numbers& stage_to_rank,
                     const std::optional<Numbers>& in_flight, Bytes memory_cap) {
  plan::PartitionOptions options;
  for (const std::int64_t rank : stage_to_rank) options.rank_of_stage.emplace_back(rank);
  if (in_flight) options.in_flight = counts_of(*in_flight, "in_flight", schedule::kMaxMicrobatches);
  options.memory_cap = memory_cap;
  const std::vector<plan::Layer> read = layers_of(layers);
  std::optional<plan::Partition> best;
  {
    const py::gil_scoped_release released;
    best = plan::partition_layers(read, options);
  }
  if (!best) return py::none();
  py::tuple stages(best->stages.size());
  for (std::size_t s = 0; s < best->stages.size(); ++s) stages[s] = to_python(best->stages[s]);
  return py::module_::import("penstock.plan")
      .attr("Partition")("first_layer"_a = py::tuple(py::cast(best->first_layer)), "stages"_a = stages,
                         "slowest"_a = best->slowest,
                         "rank_memory"_a = py::tuple(py::cast(best->rank_memory)),
                         "fullest"_a = best->fullest, "exact"_a = best->exact);
}

py::object auto_schedule(std::int64_t ranks, std::int64_t microbatches, const py::object& costs,
                         Bytes memory_cap, const std::string& send_mode, std::int64_t effort) {
  const plan::Costs read = costs_of(costs);
  const int rank_count = count_option(ranks, "ranks");
  const int microbatch_count = count_option(microbatches, "microbatches", schedule::kMaxMicrobatches);
  check_between(effort, 0, kMaxCount, "effort");
  plan::AutoOptions options;
  options.memory_cap = memory_cap;
  options.send_mode = schedule::parse_send_mode(send_mode);
  options.effort = static_cast<int>(effort);
  plan::AutoResult result;
  {
    const py::gil_scoped_release released;
    result = plan::make_auto_schedule(rank_count, microbatch_count, read, options);
  }
  const auto& named = result.best_named;
  return py::module_::import("penstock.plan")
      .attr("AutoResult")("schedule"_a = result.schedule, "step_time"_a = result.step_time,
                          "best_named"_a = named ? py::object(py::str(named->name)) : py::none(),
                          "best_named_time"_a = named ? py::object(py::float_(named->step_time)) : py::none(),
                          "lower_bound"_a = result.lower_bound);
}

const char* verdict_name(plan::PlanVerdict verdict) {
  switch (verdict) {
    case plan::PlanVerdict::Best:
      return "best";
    case plan::PlanVerdict::Slower:
      return "slower";
    case plan::PlanVerdict::DoesNotFit:
      return "does not fit";
    case plan::PlanVerdict::Impossible:
      break;
  }
  return "impossible";
}

py::object plan_object(const plan::Plan& plan) {
  const py::module_ types = py::module_::import("penstock.plan");
  const py::object shares = types.attr("TimeShares")(
      "compute"_a = plan.shares.compute, "imbalance"_a = plan.shares.imbalance,
      "bubble"_a = plan.shares.bubble, "communication"_a = plan.shares.communication);
  return types.attr("Plan")(
      "schedule"_a = to_string(plan.schedule), "stages_per_rank"_a = plan.stages_per_rank,
      "microbatches"_a = plan.microbatches, "recompute"_a = plan.recompute,
      "recompute_modules"_a = py::tuple(py::cast(plan.recomputed_modules)),
      "first_layer"_a = py::tuple(py::cast(plan.first_layer)), "step_time"_a = plan.step_time,
      "bubble"_a = plan.bubble, "peak_memory"_a = plan.peak_memory, "shares"_a = shares,
      "verdict"_a = verdict_name(plan.verdict), "why"_a = plan.why);
}

py::object result_object(const plan::PlanResult& result) {
  py::tuple plans(result.plans.size());
  for (std::size_t i = 0; i < result.plans.size(); ++i) plans[i] = plan_object(result.plans[i]);
  return py::module_::import("penstock.plan")
      .attr("PlanResult")("plans"_a = plans, "schedule"_a = result.schedule);
}

//! Plans for `layers`, or for the stages of `costs` if it is None.
py::object search(const std::optional<py::sequence>& layers, const py::object& costs, std::int64_t ranks,
                  const Numbers& microbatches, std::optional<std::int64_t> measured_microbatches,
                  const Numbers& stages_per_rank, const std::vector<std::string>& schedules, Bytes memory_cap,
                  bool recomputation, const std::string& send_mode) {
  plan::PlanOptions options;
  options.ranks = count_option(ranks, "ranks");
  options.microbatches = counts_of(microbatches, "microbatches", schedule::kMaxMicrobatches);
  if (measured_microbatches)
    options.measured_microbatches =
        count_option(*measured_microbatches, "measured_microbatches", schedule::kMaxMicrobatches);
  options.stages_per_rank = counts_of(stages_per_rank, "stages_per_rank");
  for (const std::string& name : schedules) options.schedules.push_back(plan::parse_schedule_choice(name));
  options.memory_cap = memory_cap;
  options.recomputation = recomputation;
  options.send_mode = schedule::parse_send_mode(send_mode);
  const plan::Costs read = costs_of(costs);
  const std::vector<plan::Layer> model = layers ? layers_of(*layers) : std::vector<plan::Layer>{};
  plan::PlanResult result;
  {
    const py::gil_scoped_release released;
    result = layers ? plan::plan_layers(model, read, options) : plan::plan_stages(read, options);
  }
  return result_object(result);
}

}  // namespace

void bind_planner(py::module_& module) {
  module.def("partition", &partition, "layers"_a, "stage_to_rank"_a, "in_flight"_a, "memory_cap"_a);
  module.def("auto", &auto_schedule, "ranks"_a, "microbatches"_a, "costs"_a, "memory_cap"_a, "send_mode"_a,
             "effort"_a);
  module.def("search", &search, "layers"_a, "costs"_a, "ranks"_a, "microbatches"_a, "measured_microbatches"_a,
             "stages_per_rank"_a, "schedules"_a, "memory_cap"_a, "recomputation"_a, "send_mode"_a);
}

}  // namespace penstock::python
