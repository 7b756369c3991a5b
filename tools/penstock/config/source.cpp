// Generates or reads the schedule that a command works on, and writes pictures and tables.
#include "config/source.h"

#include "base/text.h"
#include "cli/units.h"

#include <penstock/base/error.h>
#include <penstock/plan/auto_schedule.h>
#include <penstock/schedule/csv.h>
#include <penstock/schedule/generate.h>
#include <penstock/view/render.h>

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <sstream>

namespace penstock::tool {
namespace {

constexpr std::int64_t most_ranks = 65'535;
constexpr std::int64_t most_computations = 50'000'000;  //!< forwards; lowered, such a table takes several GB

int count_of(const std::optional<std::int64_t>& given, const char* option, std::int64_t most) {
  if (!given) throw UsageError(std::string("a named schedule needs ") + option);
  if (*given < 1 || *given > most) {
    throw UsageError(std::string(option) + " must be between 1 and " + std::to_string(most));
  }
  return static_cast<int>(*given);
}

bool is_terminal() {
  const char* term = std::getenv("TERM");
  return isatty(STDOUT_FILENO) == 1 && std::getenv("NO_COLOR") == nullptr &&
         !(term && std::string(term) == "dumb");
}

//! nullopt if it is not known.
std::optional<int> terminal_width() {
  winsize size{};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return std::nullopt;
  return size.ws_col;
}

}  // namespace

void ShapeOptions::declare(Arguments& arguments) {
  arguments.option("--ranks", ranks, "number of pipeline ranks (processes)");
  arguments.option("--stages-per-rank", stages_per_rank,
                   "stages per rank (default: 2 for V-shaped schedules, else 1)");
  arguments.option("--microbatches", microbatches, "microbatches per step");
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

std::vector<std::pair<std::string, schedule::SendMode>> send_mode_choices() {
  std::vector<std::pair<std::string, schedule::SendMode>> choices;
  for (const schedule::SendMode mode : schedule::send_modes) choices.emplace_back(to_string(mode), mode);
  return choices;
}

bool is_file(const std::string& name_or_file) {
  return name_or_file == "-" || to_lower(name_or_file).ends_with(".csv");
}

schedule::Schedule named_schedule(const std::string& name, const ShapeOptions& options, const CostFile& file,
                                  schedule::SendMode mode) {
  const bool automatic = to_lower(name) == "auto";
  const int ranks = count_of(options.ranks, "--ranks", most_ranks);
  const int microbatches = count_of(options.microbatches, "--microbatches", schedule::max_microbatches);
  const int usual = automatic ? 1 : info_of(schedule::parse_schedule_kind(name)).default_stages_per_rank;
  const int stages_per_rank =
      options.stages_per_rank ? count_of(options.stages_per_rank, "--stages-per-rank", most_ranks) : usual;
  if (static_cast<std::int64_t>(ranks) * stages_per_rank > schedule::max_stages) {
    throw UsageError("there can be at most " + std::to_string(schedule::max_stages) + " stages");
  }
  const schedule::ScheduleShape shape{ranks, stages_per_rank, microbatches};
  if (static_cast<std::int64_t>(shape.stages()) * microbatches > most_computations) {
    throw UsageError("a table of " + std::to_string(shape.stages()) + " stages x " +
                         std::to_string(microbatches) + " microbatches is too large",
                     {}, "use penstock schedule --rank R to print the row of one rank");
  }
  if (!automatic) return make_schedule(name, shape);
  const auto style = schedule::PlacementStyle::Loop;
  const plan::Costs costs = costs_for(file, generate_stage_to_rank_mapping(ranks, shape.stages(), style));
  return make_auto_schedule(ranks, microbatches, costs, {.memory_cap = options.cap(), .mode = mode}).schedule;
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
  if (options.microbatches)
    reading.microbatches = count_of(options.microbatches, "--microbatches", schedule::max_microbatches);
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
      const bool on_terminal = (path.empty() || path == "-") && is_terminal();
      write_output(path, to_grid(drawing, {.color = on_terminal,
                                           .width = on_terminal ? terminal_width() : std::nullopt}));
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

std::string show_time(double time, bool seconds) {
  if (seconds) return format_seconds(time);
  std::array<char, 40> text{};
  std::snprintf(text.data(), text.size(), "%.6g", time);
  return text.data();
}

std::string show_memory(std::uint64_t bytes, bool seconds) {
  if (seconds) return format_bytes(bytes);
  return std::to_string(bytes) + (bytes == 1 ? " activation" : " activations");
}

std::string show_share(double share) {
  std::array<char, 40> text{};
  std::snprintf(text.data(), text.size(), "%.1f%%", 100 * share);
  return text.data();
}

std::string show_table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> width;
  std::vector<bool> number;
  for (const auto& row : rows) {
    for (std::size_t c = 0; c < row.size(); ++c) {
      if (c == width.size()) width.push_back(0), number.push_back(true);
      width[c] = std::max(width[c], row[c].size());
      if (&row != &rows.front() && !row[c].empty() &&
          std::isdigit(static_cast<unsigned char>(row[c][0])) == 0)
        number[c] = false;
    }
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t c = 0; c < row.size(); ++c) {
      const std::string space(width[c] - row[c].size(), ' ');
      if (c > 0) line += "  ";
      line += number[c] ? space + row[c] : row[c] + space;
    }
    while (!line.empty() && line.back() == ' ') line.pop_back();
    text += line + "\n";
  }
  return text;
}

}  // namespace penstock::tool
