// Timelines, and the simulator that predicts them.
#include "plan/bindings.h"

#include <penstock/schedule/timeline.h>

#include <pybind11/stl.h>

#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace penstock::python {
namespace {

using schedule::Timeline;
using namespace py::literals;

//! One value per action of all ranks, in the order of the ranks.
template <class Value, class Read>
std::vector<Value> column(const Timeline& timeline, const Read& read) {
  std::vector<Value> values;
  for (std::size_t rank = 0; rank < timeline.ranks.size(); ++rank)
    for (const schedule::TimedAction& timed : timeline.ranks[rank]) values.push_back(read(rank, timed));
  return values;
}

py::object start_of(const Timeline& timeline) {
  return array_of("d", column<double>(timeline, [](std::size_t, const auto& timed) { return timed.start; }));
}

py::object end_of(const Timeline& timeline) {
  return array_of("d", column<double>(timeline, [](std::size_t, const auto& timed) { return timed.end; }));
}

py::object rank_of(const Timeline& timeline) {
  return array_of(
      "i", column<int>(timeline, [](std::size_t rank, const auto&) { return static_cast<int>(rank); }));
}

py::list actions_of(const Timeline& timeline) {
  py::list actions;
  for (const auto& rank : timeline.ranks)
    for (const schedule::TimedAction& timed : rank) actions.append(timed.action);
  return actions;
}

py::tuple memory_of(const Timeline& timeline, std::size_t rank) {
  if (rank >= timeline.ranks.size()) throw py::index_error("the timeline has no such rank");
  std::vector<double> time;
  std::vector<std::uint64_t> bytes;
  if (rank < timeline.memory.size()) {
    for (const schedule::MemorySample& sample : timeline.memory[rank]) {
      time.push_back(sample.time);
      bytes.push_back(sample.bytes);
    }
  }
  return py::make_tuple(array_of("d", time), array_of("Q", bytes));
}

py::tuple reports_of(const std::vector<plan::RankReport>& reports) {
  py::tuple list(reports.size());
  for (std::size_t i = 0; i < reports.size(); ++i) list[i] = to_python(reports[i]);
  return list;
}

py::tuple critical_path_of(const Prediction& prediction) {
  const py::object type = py::module_::import("penstock.plan").attr("CriticalAction");
  const std::vector<plan::CriticalAction>& path = prediction.simulation.critical_path;
  py::tuple actions(path.size());
  for (std::size_t i = 0; i < path.size(); ++i)
    actions[i] = type(path[i].rank.value, path[i].timed.action, path[i].timed.start, path[i].timed.end);
  return actions;
}

Prediction simulate(const schedule::Program& program, const py::object& costs, bool memory_samples,
                    bool critical_path) {
  const plan::Costs read = costs_of(costs);
  const view::TimeUnit unit = unit_of(costs.attr("unit").cast<std::string>());
  const py::gil_scoped_release released;
  plan::Simulation simulation =
      plan::simulate(program, read, {.memory_samples = memory_samples, .critical_path = critical_path});
  const double bound =
      plan::lower_bound(program.placement(), program.microbatches(), read, program.has_backward());
  return {std::move(simulation), unit, bound};
}

//! The text, start and end of each action, by rank.
using MeasuredRows = std::vector<std::vector<std::tuple<std::string, double, double>>>;

Timeline measured_timeline(const std::string& name, const MeasuredRows& rows,
                           const std::vector<std::int64_t>& stage_to_rank, int microbatches) {
  Timeline timeline;
  timeline.name = name;
  timeline.source = schedule::TimelineSource::Measured;
  std::vector<Rank> ranks;
  for (const std::int64_t rank : stage_to_rank) ranks.emplace_back(rank);
  timeline.placement = schedule::Placement(static_cast<int>(rows.size()), std::move(ranks));
  timeline.microbatches = microbatches;
  for (const auto& row : rows) {
    auto& timed = timeline.ranks.emplace_back();
    for (const auto& [text, start, end] : row) timed.push_back({schedule::parse_action(text), start, end});
  }
  return timeline;
}

void bind_timeline(py::module_& module) {
  py::class_<Timeline> type(
      module, "Timeline",
      "When each action of a step ran, predicted or measured. `rank`, `action`, `start` and `end` are "
      "columns of "
      "one table: entry i of each describes the same action. The arrays have the buffer protocol.");
  type.attr("__module__") = "penstock.plan";
  type.def_readonly("name", &Timeline::name, "The name of the schedule.")
      .def_property_readonly(
          "source",
          [](const Timeline& self) {
            return self.source == schedule::TimelineSource::Measured ? "measured" : "predicted";
          },
          "`predicted` by the simulator or `measured` in a step.")
      .def_property_readonly(
          "ranks", [](const Timeline& self) { return self.placement.ranks(); }, "The number of ranks.")
      .def_property_readonly(
          "stages", [](const Timeline& self) { return self.placement.num_stages(); }, "The number of stages.")
      .def_readonly("microbatches", &Timeline::microbatches, "The number of microbatches.")
      .def_property_readonly(
          "stage_to_rank", [](const Timeline& self) { return numbers_of(self.placement.stage_to_rank()); },
          "The rank of each stage.")
      .def_property_readonly("makespan", &Timeline::makespan, "The end of the last action.")
      .def_property_readonly("rank", &rank_of, "The rank of each action, as array('i').")
      .def_property_readonly("action", &actions_of, "The actions, by rank and start.")
      .def_property_readonly("start", &start_of, "The start of each action, as array('d').")
      .def_property_readonly("end", &end_of, "The end of each action, as array('d').")
      .def("memory", &memory_of, "rank"_a,
           "The memory of a rank over time: the times as array('d') and the bytes in use from each of them "
           "on, "
           "as array('Q'). Empty if it was not recorded.")
      .def(
          "report", [](const Timeline& self) { return reports_of(plan::report_ranks(self)); },
          "Busy time, bubbles and peak memory of each rank.")
      .def(
          "show", [](const py::object& self) { py::module_::import("penstock.view").attr("show")(self); },
          "Shows the picture: in a notebook, or in the browser.")
      .def("_repr_html_", [](const py::object& self) { return picture_of(self); })
      .def("__repr__", [](const Timeline& self) {
        return py::str("Timeline({!r}, {}, ranks={}, makespan={!r})")
            .format(self.name, self.source == schedule::TimelineSource::Measured ? "measured" : "predicted",
                    self.placement.ranks(), self.makespan());
      });
}

void bind_simulation(py::module_& module) {
  py::class_<Prediction> type(module, "Simulation",
                              "A predicted step. Times are in the unit of the costs, memory in bytes.");
  type.attr("__module__") = "penstock.plan";
  type.def_property_readonly(
          "timeline", [](const Prediction& self) { return self.simulation.timeline; },
          "When each action runs.")
      .def_property_readonly(
          "step_time", [](const Prediction& self) { return self.simulation.step_time; },
          "The end of the last action.")
      .def_readonly("lower_bound", &Prediction::lower_bound,
                    "A step time that no order of the computations can beat.")
      .def_property_readonly(
          "bubble", [](const Prediction& self) { return self.simulation.bubble; },
          "The idle fraction of the step, mean over the ranks.")
      .def_property_readonly(
          "own_bubble", [](const Prediction& self) { return self.simulation.own_bubble; },
          "The idle fraction between the first and the last computation of a rank, mean over the ranks.")
      .def_property_readonly(
          "peak_memory", [](const Prediction& self) { return self.simulation.peak_memory(); },
          "The peak memory of the fullest rank.")
      .def_property_readonly(
          "ranks", [](const Prediction& self) { return reports_of(self.simulation.ranks); },
          "Time and memory of each rank.")
      .def_property_readonly("critical_path", &critical_path_of,
                             "The actions that determine the step time, ordered by time.")
      .def_property_readonly(
          "unit", [](const Prediction& self) { return to_string(self.unit); },
          "`seconds`, or `units` for abstract costs.")
      .def("_repr_html_", [](const py::object& self) { return picture_of(self); })
      .def("__repr__", [](const Prediction& self) {
        return py::str("Simulation({!r}, step_time={!r}, bubble={:.3f}, peak_memory={})")
            .format(self.simulation.timeline.name, self.simulation.step_time, self.simulation.bubble,
                    self.simulation.peak_memory());
      });
}

}  // namespace

py::object to_python(const plan::RankReport& report) {
  return py::module_::import("penstock.plan")
      .attr("RankReport")("busy"_a = report.busy, "first"_a = report.first, "last"_a = report.last,
                          "bubble"_a = report.bubble, "own_bubble"_a = report.own_bubble,
                          "peak_memory"_a = report.peak_memory, "peak_at"_a = report.peak_at);
}

void bind_timelines(py::module_& module) {
  bind_timeline(module);
  bind_simulation(module);
  module.def("measured_timeline", &measured_timeline, "name"_a, "rows"_a, "stage_to_rank"_a,
             "microbatches"_a);
  module.def("simulate", &simulate, "program"_a, "costs"_a, "memory_samples"_a, "critical_path"_a);
}

}  // namespace penstock::python
