// Schedules and programs.
#include "base/option_ranges.h"
#include "base/text.h"
#include "plan/bindings.h"

#include <penstock/base/error.h>
#include <penstock/schedule/generate.h>
#include <penstock/schedule/lower.h>

#include <pybind11/stl.h>
#include <pybind11/stl/filesystem.h>

#include <cerrno>
#include <filesystem>
#include <fstream>

namespace penstock::python {
namespace {

using schedule::Program;
using schedule::Schedule;
using namespace py::literals;

using Stages = std::optional<std::vector<std::int64_t>>;

schedule::ScheduleShape shape_of(schedule::ScheduleKind kind, std::int64_t ranks, std::int64_t microbatches,
                                 std::optional<std::int64_t> stages_per_rank) {
  const int usual = info_of(kind).default_stages_per_rank;
  schedule::ScheduleShape shape;
  shape.ranks = count_option(ranks, "ranks");
  shape.stages_per_rank =
      count_option(stages_per_rank.value_or(usual), "stages_per_rank", schedule::kMaxStages / shape.ranks);
  shape.microbatches = count_option(microbatches, "microbatches", schedule::kMaxMicrobatches);
  return shape;
}

schedule::ScheduleKind kind_of(const std::string& name) {
  if (to_lower(name) == "auto")
    throw UsageError("Auto needs the costs of the stages", {}, "use penstock.plan.auto");
  return schedule::parse_schedule_kind(name);
}

Schedule generate(const std::string& name, std::int64_t ranks, std::int64_t microbatches,
                  std::optional<std::int64_t> stages_per_rank) {
  const schedule::ScheduleKind kind = kind_of(name);
  return make_schedule(kind, shape_of(kind, ranks, microbatches, stages_per_rank));
}

py::list generate_rank(const std::string& name, std::int64_t rank, std::int64_t ranks,
                       std::int64_t microbatches, std::optional<std::int64_t> stages_per_rank) {
  const schedule::ScheduleKind kind = kind_of(name);
  const schedule::ScheduleShape shape = shape_of(kind, ranks, microbatches, stages_per_rank);
  return table_of({make_rank_schedule(kind, shape, Rank(rank))})[0];
}

py::list infos() {
  const py::object type = py::module_::import("penstock.schedule").attr("ScheduleInfo");
  py::list list;
  for (const schedule::ScheduleInfo& info : schedule::schedule_infos()) {
    list.append(type("name"_a = info.name, "summary"_a = info.summary,
                     "placement"_a = to_string(info.placement),
                     "default_stages_per_rank"_a = info.default_stages_per_rank,
                     "only_stages_per_rank"_a = info.only_stages_per_rank,
                     "splits_backward"_a = info.splits_backward, "has_backward"_a = info.has_backward));
  }
  return list;
}

Schedule schedule_of(const schedule::ScheduleFile& file, std::string name) {
  if (file.level == schedule::ProgramLevel::Lowered)
    throw UsageError("the table contains transfers or stage actions", {},
                     "a Schedule has computations only; use Program");
  Schedule schedule = file.schedule();
  schedule.placement = file.placement;
  schedule.name = std::move(name);
  return schedule;
}

Program program_of(const schedule::ScheduleFile& file, std::string name, const std::string& send_mode) {
  schedule::Draft draft = file.draft();
  draft.placement = file.placement;
  draft.name = std::move(name);
  return Program::validated(std::move(draft), schedule::parse_send_mode(send_mode));
}

//! A Schedule or a Program, depending on the content of the file.
py::object read_csv(const std::filesystem::path& path, std::optional<std::int64_t> microbatches,
                    const StagePairs& skips, const std::string& send_mode) {
  schedule::CsvOptions options;
  if (microbatches) options.microbatches = MicrobatchId(*microbatches).value;
  options.skips = edges_of(skips);
  const schedule::ScheduleFile file = schedule::read_csv(path, options);
  if (file.level == schedule::ProgramLevel::Lowered)
    return py::cast(program_of(file, path.stem().string(), send_mode));
  return py::cast(schedule_of(file, path.stem().string()));
}

void write_text(const std::filesystem::path& path, const std::string& text) {
  errno = 0;
  std::ofstream out(path, std::ios::binary);
  out << text << std::flush;
  if (!out) throw StorageError("cannot write " + quote(path.string(), 200), errno != 0 ? errno : EIO);
}

Program lower(const Schedule& schedule, const std::string& send_mode, const StagePairs& skips,
              bool merge_backward, bool shard, std::int64_t max_active_stages, bool reduce_grad,
              bool defer_receives) {
  schedule::LowerOptions options;
  options.skips = edges_of(skips);
  options.merge_backward = merge_backward;
  options.shard = shard;
  options.max_active_stages = count_option(max_active_stages, "max_active_stages");
  options.reduce_grad = reduce_grad;
  options.defer_receives = defer_receives;
  const schedule::SendMode mode = schedule::parse_send_mode(send_mode);
  const py::gil_scoped_release released;
  return make_program(schedule, mode, options);
}

StagePairs skips_of(const schedule::Wiring& wiring) {
  StagePairs pairs;
  for (const schedule::StageEdge& edge : wiring.skips()) pairs.emplace_back(edge.from.value, edge.to.value);
  return pairs;
}

py::tuple peaks_of(const Program& program) {
  py::tuple peaks(static_cast<std::size_t>(program.num_stages()));
  for (int s = 0; s < program.num_stages(); ++s)
    peaks[static_cast<std::size_t>(s)] = program.peak_in_flight(StageId(s));
  return peaks;
}

std::string shape_text(const char* type, const std::string& name, int ranks, int stages, int microbatches) {
  return str_cat(type, "(", quote(name, 200), ", ranks=", ranks, ", stages=", stages,
                 ", microbatches=", microbatches, ")");
}

void bind_schedule(py::module_& module) {
  py::class_<Schedule> type(module, "Schedule",
                            "A table of computations: one row per rank. It is plain data and not necessarily "
                            "valid; `validate` checks "
                            "it, and `lower` turns it into a Program.");
  type.attr("__module__") = "penstock.schedule";
  type.def(
          py::init([](const py::sequence& table, std::string name, std::optional<std::int64_t> microbatches,
                      const Stages& stage_to_rank) {
            return schedule_of(file_of(table, microbatches, {}, stage_to_rank), std::move(name));
          }),
          "table"_a, py::kw_only(), "name"_a = "", "microbatches"_a = py::none(),
          "stage_to_rank"_a = py::none(),
          "Makes a schedule from rows of actions, texts of actions, and None for idle slots. By default, a "
          "stage "
          "is placed on the first rank whose row names it, and there is one microbatch more than the highest "
          "one in the table.")
      .def_readonly("name", &Schedule::name, "The name of the generator or file.")
      .def_property_readonly(
          "ranks", [](const Schedule& self) { return self.placement.ranks(); }, "The number of ranks.")
      .def_property_readonly("stages", &Schedule::num_stages, "The number of stages.")
      .def_readonly("microbatches", &Schedule::microbatches, "The number of microbatches.")
      .def_property_readonly(
          "stage_to_rank", [](const Schedule& self) { return numbers_of(self.placement.stage_to_rank()); },
          "The rank of each stage.")
      .def_property_readonly(
          "table", [](const Schedule& self) { return table_of(self.ranks); },
          "A copy of the rows, one per rank; an idle slot is None.")
      .def("lower", &lower, py::kw_only(), "send_mode"_a = "buffered", "skips"_a = StagePairs{},
           "merge_backward"_a = false, "shard"_a = true, "max_active_stages"_a = 3, "reduce_grad"_a = true,
           "defer_receives"_a = false,
           "Adds sends and receives, unshard and reshard actions (`shard`) and gradient reductions "
           "(`reduce_grad`), and validates the result for the send mode. Raises ScheduleError with every "
           "finding.")
      .def(
          "with_idle_slots",
          [](const Schedule& self, const StagePairs& skips) {
            return with_idle_slots(self, edges_of(skips));
          },
          py::kw_only(), "skips"_a = StagePairs{},
          "The same rows on a common clock of one slot per action, with idle slots where a rank waits.")
      .def(
          "to_csv", [](const Schedule& self) { return to_csv(self); },
          "The CSV text, in the format of torch.distributed.pipelining.")
      .def(
          "write_csv",
          [](const Schedule& self, const std::filesystem::path& path) { write_text(path, to_csv(self)); },
          "path"_a, "Writes the CSV text to a file.")
      .def("_repr_html_", [](const py::object& self) { return picture_of(self); })
      .def("__repr__",
           [](const Schedule& self) {
             return shape_text("Schedule", self.name, self.placement.ranks(), self.num_stages(),
                               self.microbatches);
           })
      .def(
          "__eq__", [](const Schedule& self, const Schedule& other) { return self == other; },
          py::is_operator())
      .def(py::pickle(
          [](const Schedule& self) {
            return py::make_tuple(self.name, table_of(self.ranks), self.microbatches,
                                  numbers_of(self.placement.stage_to_rank()));
          },
          [](const py::tuple& state) {
            return schedule_of(file_of(state[1], state[2].cast<std::int64_t>(), {}, state[3].cast<Stages>()),
                               state[0].cast<std::string>());
          }));
}

void bind_program(py::module_& module) {
  py::class_<Program> type(module, "Program",
                           "Lowered rows: computations, transfers and stage actions. The validator accepted "
                           "them for a send mode.");
  type.attr("__module__") = "penstock.schedule";
  type.def(py::init([](const py::sequence& table, std::string name, std::optional<std::int64_t> microbatches,
                       const Stages& stage_to_rank, const std::string& send_mode, const StagePairs& skips) {
             return program_of(file_of(table, microbatches, skips, stage_to_rank), std::move(name),
                               send_mode);
           }),
           "table"_a, py::kw_only(), "name"_a = "", "microbatches"_a = py::none(),
           "stage_to_rank"_a = py::none(), "send_mode"_a = "buffered", "skips"_a = StagePairs{},
           "Makes a program from rows of actions, texts of actions, and None, which is ignored. Raises "
           "ScheduleError with every finding of the validator.")
      .def_property_readonly("name", &Program::name, "The name of the schedule.")
      .def_property_readonly("ranks", &Program::ranks, "The number of ranks.")
      .def_property_readonly("stages", &Program::num_stages, "The number of stages.")
      .def_property_readonly("microbatches", &Program::microbatches, "The number of microbatches.")
      .def_property_readonly(
          "stage_to_rank", [](const Program& self) { return numbers_of(self.placement().stage_to_rank()); },
          "The rank of each stage.")
      .def_property_readonly(
          "table", [](const Program& self) { return table_of(self.draft().ranks); },
          "A copy of the rows, one per rank.")
      .def_property_readonly(
          "send_mode", [](const Program& self) { return to_string(self.send_mode()); },
          "The send mode that the program is valid for.")
      .def_property_readonly(
          "skips", [](const Program& self) { return skips_of(self.wiring()); },
          "The pairs of stages between which values skip other stages.")
      .def_property_readonly("peak_in_flight", &peaks_of,
                             "Per stage: the maximum number of microbatches in flight.")
      .def(
          "compute_only", [](const Program& self) { return compute_only(self.draft()); },
          "A Schedule with the computations of this program.")
      .def(
          "to_csv", [](const Program& self) { return to_csv(self.draft()); },
          "The CSV text, in the format of torch.distributed.pipelining.")
      .def(
          "write_csv",
          [](const Program& self, const std::filesystem::path& path) {
            write_text(path, to_csv(self.draft()));
          },
          "path"_a, "Writes the CSV text to a file.")
      .def("_repr_html_", [](const py::object& self) { return picture_of(self); })
      .def("__repr__",
           [](const Program& self) {
             return shape_text("Program", self.name(), self.ranks(), self.num_stages(), self.microbatches());
           })
      .def(
          "__eq__",
          [](const Program& self, const Program& other) {
            return self.draft() == other.draft() && self.send_mode() == other.send_mode();
          },
          py::is_operator())
      .def(py::pickle(
          [](const Program& self) {
            return py::make_tuple(self.name(), table_of(self.draft().ranks), self.microbatches(),
                                  numbers_of(self.placement().stage_to_rank()), skips_of(self.wiring()),
                                  to_string(self.send_mode()));
          },
          [](const py::tuple& state) {
            return program_of(file_of(state[1], state[2].cast<std::int64_t>(), state[4].cast<StagePairs>(),
                                      state[3].cast<Stages>()),
                              state[0].cast<std::string>(), state[5].cast<std::string>());
          }));
}

}  // namespace

void bind_schedules(py::module_& module) {
  bind_schedule(module);
  bind_program(module);
  module.def("infos", &infos);
  module.def("generate", &generate, "name"_a, "ranks"_a, "microbatches"_a, "stages_per_rank"_a);
  module.def("generate_rank", &generate_rank, "name"_a, "rank"_a, "ranks"_a, "microbatches"_a,
             "stages_per_rank"_a);
  module.def("read_csv", &read_csv, "path"_a, "microbatches"_a, "skips"_a, "send_mode"_a);
}

}  // namespace penstock::python
