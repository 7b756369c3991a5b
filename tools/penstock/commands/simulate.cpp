// `penstock simulate`: predicts time, bubbles and memory of one schedule, or compares several.
#include "base/text.h"
#include "cli/arguments.h"
#include "commands/commands.h"
#include "config/compared.h"
#include "report/results_json.h"
#include "view/quantity_text.h"

#include <penstock/base/error.h>
#include <penstock/plan/schedule_choice.h>

#include <algorithm>
#include <cstdio>
#include <utility>

namespace penstock::tool {
namespace {

enum class SimulateFormat { Text, Csv, Grid, Svg, Html, Trace };

struct Outcome {
  schedule::Program program;
  plan::Simulation simulation;
  double bound = 0;
  double size = 1;  //!< of a microbatch, relative to the costs: below 1 with more microbatches
};

constexpr std::size_t kMaxShownActions = 12;  //!< maximum number of actions printed of a critical path

std::string path_text(const std::vector<plan::CriticalAction>& path) {
  std::vector<std::string> texts;
  for (std::size_t i = 0; i < path.size(); ++i) {
    if (path.size() > kMaxShownActions && i == kMaxShownActions / 2) {
      texts.push_back(str_cat("… (", path.size() - kMaxShownActions, " more)"));
      i = path.size() - kMaxShownActions / 2;
    }
    texts.push_back(to_string(path[i].timed.action));
  }
  return join(texts, " ");
}

std::string report(const Outcome& outcome, view::TimeUnit unit) {
  const plan::Simulation& s = outcome.simulation;
  const schedule::Program& program = outcome.program;
  std::string text = str_cat(program.name(), ": ", program.ranks(), " ranks, ", program.num_stages(),
                             " stages, ", program.microbatches(), " microbatches, ",
                             std::string(to_string(program.send_mode())), " sends\n");
  text += "step time      " + format_time(s.step_time, unit) + " (lower bound " +
          format_time(outcome.bound, unit) + ")\n";
  text += "bubble         " + format_share(s.bubble) + " of the step, " + format_share(s.own_bubble) +
          " between the first and last action of each rank\n";
  text += "peak memory    " + format_memory(s.peak_memory(), unit) + "\n";
  text += "critical path  " + path_text(s.critical_path) + "\n\n";
  std::vector<std::vector<std::string>> rows{{"rank", "busy", "bubble", "own bubble", "peak memory", "at"}};
  for (std::size_t r = 0; r < s.ranks.size(); ++r) {
    const plan::RankReport& rank = s.ranks[r];
    rows.push_back({std::to_string(r), format_time(rank.busy, unit), format_share(rank.bubble),
                    format_share(rank.own_bubble), format_memory(rank.peak_memory, unit),
                    format_time(rank.peak_at, unit)});
  }
  return text + show_table(rows);
}

//! What an activation counts without real costs, in activations of one rank's layers and of the microbatches
//! that the costs apply to. Makes schedules with different stages and microbatches comparable.
double size_of_activation(const Outcome& outcome) {
  return outcome.size * outcome.program.ranks() / outcome.program.num_stages();
}

//! Without real costs, scales the stage times so that all compared schedules run the same model and batch:
//! more stages per rank means shorter stages, and more microbatches means smaller ones.
void scale_costs(plan::Costs& costs, int ranks, double size) {
  const double scale = size * static_cast<double>(ranks) / static_cast<double>(costs.stages.size());
  for (plan::StageCosts& stage : costs.stages) {
    stage.forward *= scale;
    stage.input *= scale;
    stage.weight *= scale;
  }
}

std::string comparison(const std::vector<Outcome>& outcomes, view::TimeUnit unit) {
  const int first = outcomes.front().program.microbatches();
  const bool several_counts = std::any_of(outcomes.begin(), outcomes.end(), [&](const Outcome& outcome) {
    return outcome.program.microbatches() != first;
  });
  std::vector<std::vector<std::string>> rows{{"schedule", "stages"}};
  if (several_counts) rows.front().push_back("microbatches");
  for (const char* column : {"step time", "bubble", "own bubble", "peak memory"})
    rows.front().emplace_back(column);
  for (const Outcome& outcome : outcomes) {
    const plan::Simulation& s = outcome.simulation;
    auto& row = rows.emplace_back();
    row = {outcome.program.name(), std::to_string(outcome.program.num_stages())};
    if (several_counts) row.push_back(std::to_string(outcome.program.microbatches()));
    const double activations = static_cast<double>(s.peak_memory()) * size_of_activation(outcome);
    row.insert(row.end(), {format_time(s.step_time, unit), format_share(s.bubble), format_share(s.own_bubble),
                           unit == view::TimeUnit::Seconds ? format_bytes(s.peak_memory())
                                                           : format_time(activations, unit)});
  }
  return show_table(rows);
}

//! The predicted timeline, one line per action.
std::string timeline_csv(const schedule::Timeline& timeline) {
  std::string text = "rank,action,start,end\n";
  for (std::size_t r = 0; r < timeline.ranks.size(); ++r) {
    for (const schedule::TimedAction& timed : timeline.ranks[r]) {
      text += str_cat(r, ",", to_string(timed.action), formatted(",%.9g,%.9g\n", timed.start, timed.end));
    }
  }
  return text;
}

//! Simulates one schedule. `base` is the count of microbatches that the costs apply to; not set: every count.
Outcome simulate_one(const ComparedSchedule& one, const CostFile& file, schedule::SendMode mode,
                     std::optional<int> base, bool compared) {
  const bool real = file.time_unit == view::TimeUnit::Seconds;
  const auto count = one.shape.microbatches;
  const double size = base && count ? *base / static_cast<double>(*count) : 1;
  const CostFile costs_of_size = real && size != 1 ? resized(file, size) : file;
  schedule::Program program = program_of(one.name_or_file, one.shape, costs_of_size, mode);
  plan::Costs costs = costs_for(costs_of_size, program.placement().stage_to_rank());
  if (!real && compared) scale_costs(costs, program.ranks(), size);
  const double bound =
      lower_bound(program.placement(), program.microbatches(), costs, program.has_backward());
  plan::Simulation simulation = simulate(program, costs);
  return {std::move(program), std::move(simulation), bound, size};
}

//! Simulates everything. Schedules of `all` that do not support the counts or the costs are left out; a note
//! on standard error says why.
std::vector<Outcome> simulate_all(const std::vector<ComparedSchedule>& schedules, const CostFile& file,
                                  schedule::SendMode mode, std::optional<int> base) {
  std::vector<Outcome> outcomes;
  for (const ComparedSchedule& one : schedules) {
    try {
      outcomes.push_back(simulate_one(one, file, mode, base, schedules.size() > 1));
    } catch (const UsageError& error) {
      if (!one.only_if_valid || (&one == &schedules.back() && outcomes.empty())) throw;
      std::fprintf(stderr, "penstock: note: left out %s: %s\n", one.name_or_file.c_str(),
                   error.message().c_str());
    }
  }
  return outcomes;
}

view::Drawing drawing_of(const std::vector<Outcome>& outcomes, view::TimeUnit unit) {
  if (outcomes.size() == 1) return view::draw(outcomes.front().simulation, unit);
  std::vector<const plan::Simulation*> simulations;
  std::vector<double> sizes;
  for (const Outcome& outcome : outcomes) {
    simulations.push_back(&outcome.simulation);
    if (unit == view::TimeUnit::Units) sizes.push_back(size_of_activation(outcome));
  }
  return view::draw_comparison(simulations, unit, sizes);
}

}  // namespace

int simulate_command(Arguments& arguments) {
  std::vector<std::string> names, microbatches;
  std::string output;
  ShapeOptions shape;
  schedule::SendMode mode = schedule::SendMode::Buffered;
  SimulateFormat format = SimulateFormat::Text;
  arguments.positional(
      "NAME|FILE.csv", names,
      "schedule names (Interleaved1F1B:2 has 2 stages per rank; all: every schedule), or schedule "
      "files (compute-only or lowered)");
  std::vector<std::string> suggested = plan::schedule_choice_names();
  suggested.emplace_back("all");
  arguments.suggest("NAME|FILE.csv", std::move(suggested));
  shape.declare_shared(arguments);
  arguments.option(
      "--microbatches", microbatches,
      "microbatches per step; several counts (8,16) split the same batch, and the costs apply to the "
      "first unless the cost file sets microbatches");
  arguments.choice("--send-mode", mode, send_mode_choices(), "how the transport treats a send");
  arguments.choice("--as", format,
                   {{"text", SimulateFormat::Text},
                    {"csv", SimulateFormat::Csv},
                    {"grid", SimulateFormat::Grid},
                    {"svg", SimulateFormat::Svg},
                    {"html", SimulateFormat::Html},
                    {"trace", SimulateFormat::Trace}},
                   "output format");
  arguments.option("-o,--output", output, "output file (default: standard output)");
  arguments.parse();
  const CostFile file = shape.costs();
  const std::vector<std::int64_t> counts = microbatch_counts(microbatches);
  std::optional<int> base;
  if (counts.size() > 1) base = file.microbatches.value_or(static_cast<int>(counts.front()));
  const std::vector<ComparedSchedule> schedules = compared_schedules(names, counts, shape);
  if (format == SimulateFormat::Csv && schedules.size() > 1)
    throw UsageError("--as csv takes only one schedule", {},
                     "give one schedule, or use --as html, svg or grid to draw several");
  const std::vector<Outcome> outcomes = simulate_all(schedules, file, mode, base);
  if (arguments.json()) {
    JsonWriter out;
    out.begin_array();
    for (const Outcome& outcome : outcomes)
      write_simulation(out, outcome.program, outcome.simulation, outcome.bound);
    out.end_array();
    write_output(output, out.text() + "\n");
    return 0;
  }
  if (format == SimulateFormat::Text) {
    write_output(output, outcomes.size() == 1 ? report(outcomes.front(), file.time_unit)
                                              : comparison(outcomes, file.time_unit));
    return 0;
  }
  if (format == SimulateFormat::Csv) {
    write_output(output, timeline_csv(outcomes.front().simulation.timeline));
    return 0;
  }
  const auto picture =
      static_cast<Picture>(static_cast<int>(format) - static_cast<int>(SimulateFormat::Grid));
  write_picture(drawing_of(outcomes, file.time_unit), picture, output);
  return 0;
}

}  // namespace penstock::tool
