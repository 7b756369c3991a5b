// Actions, and tables of them.
#include "base/text.h"
#include "plan/bindings.h"

#include <penstock/base/error.h>
#include <penstock/schedule/action.h>

#include <pybind11/stl.h>

#include <sstream>

namespace penstock::python {
namespace {

using schedule::Action;

bool has_microbatch(const Action& action) {
  return action.is_compute() || action.is_transfer();
}

std::optional<int> microbatch_of(const Action& action) {
  return has_microbatch(action) ? std::optional(action.microbatch().value) : std::nullopt;
}

std::optional<int> peer_of(const Action& action) {
  return action.is_transfer() ? std::optional(action.peer().value) : std::nullopt;
}

py::tuple parts_of(const Action& action) {
  py::list parts;
  for_each_part(action, [&parts](const Action& part) { parts.append(part); });
  return py::tuple(parts);
}

Action action_of(const py::handle& field, std::size_t row, std::size_t column) {
  if (field.is_none()) return {};
  if (py::isinstance<Action>(field)) return field.cast<Action>();
  const std::string where = str_cat("row ", row, ", column ", column, ": ");
  if (!py::isinstance<py::str>(field))
    throw py::type_error(where + "expected an Action, a text or None, not " +
                         py::str(py::type::of(field).attr("__name__")).cast<std::string>());
  const auto text = field.cast<std::string>();
  if (text.empty()) return {};
  const auto parsed = schedule::try_parse_action(text);
  if (const auto* problem = std::get_if<schedule::ActionProblem>(&parsed))
    throw ParseError(where + quote(text) + " is not a valid action: " + problem->reason);
  return std::get<Action>(parsed);
}

std::vector<schedule::ActionList> rows_of(const py::sequence& table) {
  std::vector<schedule::ActionList> rows;
  for (const py::handle row : table) {
    if (!py::isinstance<py::sequence>(row) || py::isinstance<py::str>(row))
      throw py::type_error(str_cat("row ", rows.size() + 1, " of the table is not a sequence of actions"));
    schedule::ActionList actions;
    for (const py::handle field : row)
      actions.push_back(action_of(field, rows.size() + 1, actions.size() + 1));
    rows.push_back(std::move(actions));
  }
  return rows;
}

}  // namespace

std::vector<schedule::StageEdge> edges_of(const StagePairs& skips) {
  std::vector<schedule::StageEdge> edges;
  for (const auto& [from, to] : skips) edges.push_back({StageId(from), StageId(to)});
  return edges;
}

schedule::ScheduleFile file_of(const py::sequence& table, std::optional<std::int64_t> microbatches,
                               const StagePairs& skips,
                               const std::optional<std::vector<std::int64_t>>& stage_to_rank) {
  std::vector<schedule::ActionList> rows = rows_of(table);
  schedule::CsvOptions options;
  if (microbatches) options.microbatches = MicrobatchId(*microbatches).value;
  options.skips = edges_of(skips);
  // The reader of files derives placement, wiring and level. It drops idle slots at the end of a row.
  std::stringstream text;
  schedule::write_csv(text, rows);
  schedule::ScheduleFile file = schedule::read_csv(text, options);
  file.ranks = std::move(rows);
  if (stage_to_rank) {
    std::vector<Rank> ranks;
    for (const std::int64_t rank : *stage_to_rank) ranks.emplace_back(rank);
    file.placement = schedule::Placement(static_cast<int>(file.ranks.size()), std::move(ranks));
  }
  return file;
}

py::list table_of(const std::vector<schedule::ActionList>& ranks) {
  py::list table;
  for (const schedule::ActionList& rank : ranks) {
    py::list row;
    for (const Action& action : rank)
      row.append(action.is_idle() ? py::object(py::none()) : py::cast(action));
    table.append(std::move(row));
  }
  return table;
}

py::tuple numbers_of(const std::vector<Rank>& ids) {
  py::tuple numbers(ids.size());
  for (std::size_t i = 0; i < ids.size(); ++i) numbers[i] = ids[i].value;
  return numbers;
}

void bind_actions(py::module_& module) {
  py::class_<Action> action(
      module, "Action", "One action of a rank, such as `2F0`: stage 2, forward, microbatch 0. Immutable.");
  action.attr("__module__") = "penstock.schedule";
  action
      .def(py::init([](const std::string& text) { return schedule::parse_action(text); }), py::arg("text"),
           "Parses the text of an action, such as `2F0` or `1SEND_B3`. Raises ParseError.")
      .def_property_readonly(
          "kind", [](const Action& self) { return schedule::to_string(self.kind()); },
          "What the action does: `F`, `B`, `I`, `W`, `OVERLAP_F_B`, `SEND_F`, `RECV_F`, `SEND_B`, `RECV_B`, "
          "`UNSHARD`, `RESHARD` or `REDUCE_GRAD`.")
      .def_property_readonly(
          "stage", [](const Action& self) { return self.stage().value; },
          "The stage that the action runs on; for an overlap, that of its forward pass.")
      .def_property_readonly("microbatch", &microbatch_of,
                             "The microbatch of a computation or transfer; None for stage actions.")
      .def_property_readonly("peer", &peer_of, "The stage at the other end of a transfer, else None.")
      .def_property_readonly("parts", &parts_of,
                             "The forward and the backward pass of an overlap; any other action itself.")
      .def_property_readonly("is_compute", &Action::is_compute, "Whether it is a computation.")
      .def_property_readonly("is_transfer", &Action::is_transfer, "Whether it is a send or a receive.")
      .def("__str__", [](const Action& self) { return to_string(self); })
      .def("__repr__", [](const Action& self) { return "Action('" + to_string(self) + "')"; })
      .def("__hash__", [](const Action& self) { return py::hash(py::str(to_string(self))); })
      .def(
          "__eq__", [](const Action& self, const Action& other) { return self == other; }, py::is_operator())
      .def(py::pickle(
          [](const Action& self) { return py::make_tuple(to_string(self)); },
          [](const py::tuple& state) { return schedule::parse_action(state[0].cast<std::string>()); }));
}

}  // namespace penstock::python
