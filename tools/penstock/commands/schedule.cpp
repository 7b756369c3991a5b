// `penstock schedule`: prints or draws a schedule.
#include "base/option_ranges.h"
#include "base/text.h"
#include "cli/arguments.h"
#include "commands/commands.h"
#include "config/source.h"
#include "report/results_json.h"

#include <penstock/base/error.h>
#include <penstock/schedule/csv.h>
#include <penstock/schedule/generate.h>

#include <sstream>

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

std::string table_json(const std::string& name, const schedule::Placement& placement, int microbatches,
                       bool lowered, const std::vector<schedule::ActionList>& ranks) {
  JsonWriter out;
  out.begin_object()
      .field("name", name)
      .field("ranks", placement.ranks())
      .field("stages", placement.num_stages());
  out.field("microbatches", microbatches).field("lowered", lowered).key("rank_of_stage").begin_array();
  for (const Rank rank : placement.stage_to_rank()) out.value(rank.value);
  out.end_array().key("rows").begin_array();
  for (const schedule::ActionList& rank : ranks) {
    out.begin_array();
    for (const schedule::Action& action : rank) out.value(to_string(action));
    out.end_array();
  }
  out.end_array().end_object();
  return out.text() + "\n";
}

//! Prints the row of one rank, without generating the other rows if the generator allows it.
int one_rank(const std::string& name, const ShapeOptions& options, std::int64_t rank,
             const std::string& output) {
  const schedule::ScheduleKind kind = schedule::parse_schedule_kind(name);
  if (!options.ranks || !options.microbatches) {
    throw UsageError("a named schedule needs --ranks and --microbatches");
  }
  const int ranks = count_option(*options.ranks, "--ranks", schedule::kMaxStages);
  const int stages_per_rank =
      count_option(options.stages_per_rank.value_or(info_of(kind).default_stages_per_rank),
                   "--stages-per-rank", schedule::kMaxStages / ranks);
  const int microbatches =
      count_option(*options.microbatches, "--microbatches", kMaxRowMicrobatches / stages_per_rank);
  const schedule::ScheduleShape shape{ranks, stages_per_rank, microbatches};
  check_shape(kind, shape);
  check_between(rank, 0, ranks - 1, "--rank");
  std::ostringstream text;
  text.exceptions(std::ios::badbit);  // else text would be lost silently if memory runs out
  schedule::write_csv(text, {make_rank_schedule(kind, shape, Rank(rank))});
  write_output(output, text.str());
  return 0;
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
  shape.declare(arguments);
  arguments.flag("--list", listing, "list the schedules");
  arguments.flag("--lowered", lowered, "include sends, receives, unshard, reshard and gradient reduction");
  arguments.option("--rank", rank, "print only the row of this rank, as csv");
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
  if (rank) return one_rank(name, shape, *rank, output);

  const CostFile file = shape.costs();
  const schedule::Schedule schedule = named_schedule(name, shape, file, schedule::SendMode::Buffered);
  schedule::LowerOptions lowering;
  lowering.skips = skips_of(file);
  if (arguments.json()) {
    const std::vector<schedule::ActionList> ranks =
        lowered ? lower(schedule, lowering).ranks : schedule.ranks;
    write_output(output,
                 table_json(schedule.name, schedule.placement, schedule.microbatches, lowered, ranks));
    return 0;
  }
  if (format == ScheduleFormat::Csv) {
    write_output(output, lowered ? to_csv(lower(schedule, lowering)) : to_csv(schedule));
    return 0;
  }
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
