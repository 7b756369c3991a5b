// `penstock schedule`: prints or draws a schedule.
#include "base/option_ranges.h"
#include "base/text.h"
#include "cli/arguments.h"
#include "commands/commands.h"
#include "config/source.h"
#include "report/results_json.h"

#include <penstock/base/error.h>
#include <penstock/plan/schedule_choice.h>
#include <penstock/schedule/csv.h>
#include <penstock/schedule/generate.h>

#include <sstream>
#include <utility>
#include <variant>

namespace penstock::tool {
namespace {

enum class ScheduleFormat { Csv, Grid, Svg, Html, Trace };

constexpr std::int64_t kMaxRowMicrobatches = 50'000'000;  //!< in the row of one rank

std::string stages_text(const schedule::ScheduleInfo& info) {
  return info.only_stages_per_rank ? std::to_string(*info.only_stages_per_rank) : "1 or more";
}

int list(bool json) {
  if (!json) {
    std::vector<std::vector<std::string>> rows{{"name", "stages per rank", "description"}};
    for (const schedule::ScheduleInfo& info : schedule::schedule_infos()) {
      rows.push_back({std::string(info.name), stages_text(info), std::string(info.summary)});
    }
    rows.push_back({"Auto", "1 or more", "generated for the given costs and memory cap"});
    print(show_table(rows));
    return 0;
  }
  JsonWriter out;
  write_schedule_list(out);
  print(out.text() + "\n");
  return 0;
}

//! What the command prints as csv or JSON: the rows of all ranks, or that of one rank.
struct Table {
  std::string name;
  schedule::Placement placement;
  int microbatches = 0;
  bool lowered = false;
  std::vector<schedule::ActionList> rows;
  std::optional<Rank> only;  //!< the rank of the single row
};

std::string to_json(const Table& table) {
  JsonWriter out;
  out.begin_object()
      .field("name", table.name)
      .field("ranks", table.placement.ranks())
      .field("stages", table.placement.num_stages());
  out.field("microbatches", table.microbatches).field("lowered", table.lowered);
  out.key("rank_of_stage").begin_array();
  for (const Rank rank : table.placement.stage_to_rank()) out.value(rank.value);
  out.end_array();
  if (table.only) out.field("rank", table.only->value);
  out.key("rows").begin_array();
  for (const schedule::ActionList& row : table.rows) {
    out.begin_array();
    for (const schedule::Action& action : row) out.value(to_string(action));
    out.end_array();
  }
  out.end_array().end_object();
  return out.text() + "\n";
}

std::string to_csv(const Table& table) {
  std::ostringstream text;
  text.exceptions(std::ios::badbit);  // else text would be lost silently if memory runs out
  schedule::write_csv(text, table.rows);
  return text.str();
}

Table table_of(schedule::Schedule schedule, bool lowered, const schedule::LowerOptions& lowering) {
  Table table{schedule.name, schedule.placement, schedule.microbatches, lowered, {}, {}};
  table.rows = lowered ? lower(schedule, lowering).ranks : std::move(schedule.ranks);
  return table;
}

//! The row of one rank of a named schedule, without the other rows if the generator allows it.
Table generated_row(schedule::ScheduleKind kind, const ShapeOptions& options, std::int64_t rank) {
  const int ranks = count_option(required(options.ranks, "--ranks"), "--ranks", schedule::kMaxStages);
  const int stages_per_rank =
      count_option(options.stages_per_rank.value_or(info_of(kind).default_stages_per_rank),
                   "--stages-per-rank", schedule::kMaxStages / ranks);
  const int microbatches = count_option(required(options.microbatches, "--microbatches"), "--microbatches",
                                        kMaxRowMicrobatches / stages_per_rank);
  const schedule::ScheduleShape shape{ranks, stages_per_rank, microbatches};
  check_shape(kind, shape);
  check_between(rank, 0, ranks - 1, "--rank");
  return {std::string(to_string(kind)),
          schedule::Placement::make(ranks, shape.num_stages(), info_of(kind).placement),
          microbatches,
          false,
          {make_rank_schedule(kind, shape, Rank(rank))},
          Rank(rank)};
}

//! `Auto` and the transfers of a lowered schedule depend on all ranks.
Table row_of(const std::string& name, const ShapeOptions& options, const CostFile& file, bool lowered,
             const schedule::LowerOptions& lowering, std::int64_t rank) {
  const plan::ScheduleChoice choice = plan::parse_schedule_choice(name);
  const auto* const kind = std::get_if<schedule::ScheduleKind>(&choice);
  if (kind != nullptr && !lowered) return generated_row(*kind, options, rank);
  Table table =
      table_of(named_schedule(name, options, file, schedule::SendMode::Buffered), lowered, lowering);
  check_between(rank, 0, table.placement.ranks() - 1, "--rank");
  table.only = Rank(rank);
  table.rows = {std::move(table.rows[table.only->index()])};
  return table;
}

}  // namespace

int schedule_command(Arguments& arguments) {
  std::string name, output;
  ShapeOptions shape;
  bool listing = false, lowered = false;
  std::optional<std::int64_t> rank;
  ScheduleFormat format = ScheduleFormat::Csv;
  arguments.positional("NAME", name, "schedule name (case-insensitive) or Auto; see --list",
                       Arguments::Need::Optional);
  arguments.suggest("NAME", plan::schedule_choice_names());
  shape.declare(arguments);
  arguments.flag("--list", listing, "list the schedules");
  arguments.flag("--lowered", lowered, "include sends, receives, unshard, reshard and gradient reduction");
  arguments.option("--rank", rank, "print only the row of this rank, as csv or JSON");
  arguments.choice("--as", format,
                   {{"csv", ScheduleFormat::Csv},
                    {"grid", ScheduleFormat::Grid},
                    {"svg", ScheduleFormat::Svg},
                    {"html", ScheduleFormat::Html},
                    {"trace", ScheduleFormat::Trace}},
                   "output format");
  arguments.option("-o,--output", output, "output file (default: standard output)");
  arguments.parse();
  if (listing) return list(arguments.json());
  if (name.empty()) throw UsageError("no schedule given", {}, "see penstock schedule --list");
  if (is_file(name))
    throw UsageError("schedule takes a schedule name, not a file", {},
                     "use penstock simulate or validate for files");
  if (rank && format != ScheduleFormat::Csv)
    throw UsageError("--rank prints the row of one rank as csv or JSON, not as a picture", {},
                     "leave out --as, or leave out --rank to draw all ranks");

  const CostFile file = shape.costs();
  schedule::LowerOptions lowering;
  lowering.skips = skips_of(file);
  const auto write_table = [&](const Table& table) {
    write_output(output, arguments.json() ? to_json(table) : to_csv(table));
    return 0;
  };
  if (rank) return write_table(row_of(name, shape, file, lowered, lowering, *rank));
  schedule::Schedule schedule = named_schedule(name, shape, file, schedule::SendMode::Buffered);
  if (arguments.json() || format == ScheduleFormat::Csv)
    return write_table(table_of(std::move(schedule), lowered, lowering));
  const schedule::Program program = make_program(schedule, schedule::SendMode::Buffered, lowering);
  const bool units = shape.costs_path.empty();
  const plan::Costs costs = costs_for(file, schedule.placement.stage_to_rank());
  const view::Drawing drawing =
      lowered && units ? view::draw(program) : view::draw(simulate(program, costs), file.time_unit);
  write_picture(drawing,
                static_cast<Picture>(static_cast<int>(format) - static_cast<int>(ScheduleFormat::Grid)),
                output);
  return 0;
}

}  // namespace penstock::tool
