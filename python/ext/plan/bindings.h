// The parts of penstock._plan, one function per source file, and what they share.
#pragma once

#include <penstock/base/diagnostic.h>
#include <penstock/base/ids.h>
#include <penstock/plan/simulate.h>
#include <penstock/schedule/csv.h>
#include <penstock/schedule/program.h>
#include <penstock/schedule/schedule.h>
#include <penstock/view/drawing.h>

#include <pybind11/pybind11.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace penstock::python {

namespace py = pybind11;

void bind_actions(py::module_& module);
void bind_schedules(py::module_& module);
void bind_validation(py::module_& module);
void bind_timelines(py::module_& module);
void bind_costs(py::module_& module);
void bind_planner(py::module_& module);
void bind_views(py::module_& module);

//! A prediction, with what the simulator does not keep: the unit of the costs and the lower bound.
struct Prediction {
  plan::Simulation simulation;
  view::TimeUnit unit = view::TimeUnit::Units;
  double lower_bound = 0;
};

//! Pairs of stages, from Python. Throws UsageError if a number is not a stage.
using StagePairs = std::vector<std::pair<std::int64_t, std::int64_t>>;
std::vector<schedule::StageEdge> edges_of(const StagePairs& skips);

//! A table of Python: one sequence per rank of actions, texts of actions and None. Throws a ParseError that
//! names row and column.
schedule::ScheduleFile file_of(const py::sequence& table, std::optional<std::int64_t> microbatches,
                               const StagePairs& skips,
                               const std::optional<std::vector<std::int64_t>>& stage_to_rank);

//! The rows of actions as lists; an idle slot is None.
py::list table_of(const std::vector<schedule::ActionList>& ranks);
//! The ranks or stages as a tuple of int.
py::tuple numbers_of(const std::vector<Rank>& ids);
//! The findings as a tuple of penstock.schedule.Diagnostic.
py::tuple diagnostics_of(const Diagnostics& diagnostics);

//! An array.array of this type code, which has the buffer protocol.
template <class Number>
py::object array_of(const char* type_code, const std::vector<Number>& numbers) {
  const py::bytes bytes(reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(Number));
  const py::object array = py::module_::import("array").attr("array")(type_code);
  array.attr("frombytes")(bytes);
  return array;
}

//! The costs of a penstock.plan.Costs.
plan::Costs costs_of(const py::handle& costs);
view::TimeUnit unit_of(const std::string& name);
std::string_view to_string(view::TimeUnit unit);
//! The layers of a sequence of penstock.plan.Layer.
std::vector<plan::Layer> layers_of(const py::sequence& layers);
//! A penstock.plan.StageCosts.
py::object to_python(const plan::StageCosts& costs);
//! A penstock.plan.RankReport.
py::object to_python(const plan::RankReport& report);

//! Draws a Schedule, Program, Simulation or Timeline, or a sequence of timelines. `unit` applies to
//! timelines.
view::Drawing drawing_of(const py::object& subject, const std::string& unit);
//! What a notebook shows, or None if the picture would be too large.
py::object picture_of(const py::object& subject);

}  // namespace penstock::python
