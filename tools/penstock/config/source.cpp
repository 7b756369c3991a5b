// Generates or reads the schedule that a command works on, and writes pictures.
#include "config/source.h"

#include "base/option_ranges.h"
#include "base/text.h"
#include "cli/terminal.h"
#include "cli/units.h"

#include <penstock/base/error.h>
#include <penstock/plan/auto_schedule.h>
#include <penstock/plan/schedule_choice.h>
#include <penstock/schedule/csv.h>
#include <penstock/schedule/generate.h>
#include <penstock/view/render.h>

#include <cmath>
#include <sstream>

namespace penstock::tool {
namespace {

constexpr std::int64_t kMaxForwards = 50'000'000;  //!< forward passes; lowered, such a table takes several GB

int microbatch_count(std::int64_t given) {
  return count_option(given, "--microbatches", schedule::kMaxMicrobatches);
}

}  // namespace

void ShapeOptions::declare(Arguments& arguments) {
  declare_shared(arguments);
  arguments.option("--microbatches", microbatches, "microbatches per step");
}

void ShapeOptions::declare_shared(Arguments& arguments) {
  arguments.option("--ranks", ranks, "number of pipeline ranks (processes)");
  arguments.option("--stages-per-rank", stages_per_rank,
                   "stages per rank (default: 2 for V-shaped schedules, else 1)");
  arguments.option("--costs", costs_path,
                   "a TOML cost file (default: F, I and W take 1 unit of time, B takes 2)");
  arguments.option("--memory-cap", memory_cap, "memory limit per rank, for Auto: 16GiB");
}

CostFile ShapeOptions::costs() const {
  return costs_path.empty() ? CostFile{} : read_cost_file(costs_path);
}

std::optional<std::uint64_t> ShapeOptions::cap() const {
  if (memory_cap.empty()) return std::nullopt;
  return static_cast<std::uint64_t>(std::llround(parse_bytes(memory_cap)));
}

std::int64_t required(const std::optional<std::int64_t>& given, const std::string& option) {
  if (!given)
    throw UsageError("a named schedule needs " + option, {}, "for example --ranks 4 --microbatches 8");
  return *given;
}

std::vector<std::pair<std::string, schedule::SendMode>> send_mode_choices() {
  std::vector<std::pair<std::string, schedule::SendMode>> choices;
  for (const schedule::SendMode mode : schedule::kSendModes) choices.emplace_back(to_string(mode), mode);
  return choices;
}

bool is_file(const std::string& name_or_file) {
  return name_or_file == "-" || to_lower(name_or_file).ends_with(".csv");
}

schedule::Schedule named_schedule(const std::string& name, const ShapeOptions& options, const CostFile& file,
                                  schedule::SendMode mode) {
  const int ranks = count_option(required(options.ranks, "--ranks"), "--ranks");
  const int microbatches = microbatch_count(required(options.microbatches, "--microbatches"));
  const plan::ScheduleChoice choice = plan::parse_schedule_choice(name);
  const auto* const kind = std::get_if<schedule::ScheduleKind>(&choice);
  const int usual = kind != nullptr ? info_of(*kind).default_stages_per_rank : 1;
  const int stages_per_rank =
      options.stages_per_rank ? count_option(*options.stages_per_rank, "--stages-per-rank") : usual;
  if (static_cast<std::int64_t>(ranks) * stages_per_rank > schedule::kMaxStages) {
    throw UsageError(str_cat("there can be at most ", schedule::kMaxStages, " stages"));
  }
  const schedule::ScheduleShape shape{ranks, stages_per_rank, microbatches};
  if (static_cast<std::int64_t>(shape.num_stages()) * microbatches > kMaxForwards) {
    throw UsageError(
        str_cat("a table of ", shape.num_stages(), " stages x ", microbatches, " microbatches is too large"),
        {}, "penstock schedule --rank R, without --lowered, prints the row of one rank");
  }
  if (kind != nullptr) return make_schedule(*kind, shape);
  const auto style = schedule::PlacementStyle::Loop;
  const plan::Costs costs = costs_for(file, generate_stage_to_rank_mapping(ranks, shape.num_stages(), style));
  return make_auto_schedule(ranks, microbatches, costs, {.memory_cap = options.cap(), .send_mode = mode})
      .schedule;
}

std::vector<schedule::StageEdge> skips_of(const CostFile& file) {
  std::vector<schedule::StageEdge> skips;
  for (const auto& [edge, bytes] : file.shared.skip_bytes) skips.push_back({edge.first, edge.second});
  return skips;
}

schedule::Program program_of(const std::string& name_or_file, const ShapeOptions& options,
                             const CostFile& file, schedule::SendMode mode) {
  schedule::LowerOptions lowering;
  lowering.skips = skips_of(file);
  if (!is_file(name_or_file))
    return make_program(named_schedule(name_or_file, options, file, mode), mode, lowering);
  std::istringstream text(read_input(name_or_file));
  schedule::CsvOptions reading;
  reading.skips = lowering.skips;
  if (options.microbatches) reading.microbatches = microbatch_count(*options.microbatches);
  const schedule::ScheduleFile table = read_csv(text, reading);
  if (table.level == schedule::ProgramLevel::Lowered) {
    schedule::Draft draft = table.draft();
    draft.name = name_or_file;
    return schedule::Program::validated(std::move(draft), mode);
  }
  schedule::Schedule schedule = table.schedule();
  schedule.name = name_or_file;
  return make_program(schedule, mode, lowering);
}

void write_picture(const view::Drawing& drawing, Picture picture, const std::string& path) {
  switch (picture) {
    case Picture::Grid: {
      const bool shown = (path.empty() || path == "-") && on_terminal();
      write_output(path, to_grid(drawing, {.color = shown && wants_color(),
                                           .width = shown ? terminal_width() : std::nullopt}));
      return;
    }
    case Picture::Svg:
      write_output(path, to_svg(drawing));
      return;
    case Picture::Html:
      write_output(path, to_html(drawing));
      return;
    case Picture::Trace:
      write_output(path, to_trace(drawing));
      return;
  }
}

}  // namespace penstock::tool
