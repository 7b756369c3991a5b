// `penstock simulate`: predicts time, bubbles and memory of one schedule, or compares several.
#include "base/text.h"
#include "cli/arguments.h"
#include "commands/commands.h"
#include "config/source.h"
#include "report/results_json.h"
#include "view/quantity_text.h"

#include <penstock/base/error.h>

namespace penstock::tool {
namespace {

enum class SimulateFormat { Text, Csv, Grid, Svg, Html, Trace };

struct Outcome {
  schedule::Program program;
  plan::Simulation simulation;
  double bound = 0;
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

//! Peak memory without real costs, in activations of one rank's layers. Comparable between schedules with
//! different numbers of stages per rank.
double per_rank(const Outcome& outcome) {
  return static_cast<double>(outcome.simulation.peak_memory()) * outcome.program.ranks() /
         outcome.program.num_stages();
}

//! Without real costs, scales the stage times so that all compared schedules run the same model: more stages
//! per rank means shorter stages.
void scale_costs(plan::Costs& costs, int ranks) {
  const double scale = static_cast<double>(ranks) / static_cast<double>(costs.stages.size());
  for (plan::StageCosts& stage : costs.stages) {
    stage.forward *= scale;
    stage.input *= scale;
    stage.weight *= scale;
  }
}

std::string comparison(const std::vector<Outcome>& outcomes, view::TimeUnit unit) {
  std::vector<std::vector<std::string>> rows{
      {"schedule", "stages", "step time", "bubble", "own bubble", "peak memory"}};
  for (const Outcome& outcome : outcomes) {
    const plan::Simulation& s = outcome.simulation;
    rows.push_back({outcome.program.name(), std::to_string(outcome.program.num_stages()),
                    format_time(s.step_time, unit), format_share(s.bubble), format_share(s.own_bubble),
                    unit == view::TimeUnit::Seconds ? format_bytes(s.peak_memory())
                                                    : format_time(per_rank(outcome), unit)});
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

}  // namespace

int simulate_command(Arguments& arguments) {
  std::vector<std::string> names;
  std::string output;
  ShapeOptions shape;
  schedule::SendMode mode = schedule::SendMode::Buffered;
  SimulateFormat format = SimulateFormat::Text;
  arguments.positional("NAME|FILE.csv", names, "schedule names or schedule files (compute-only or lowered)");
  shape.declare(arguments);
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
  if (format != SimulateFormat::Text && names.size() > 1)
    throw UsageError("--as takes only one schedule", {},
                     "give one schedule, or omit --as to compare several");

  std::vector<Outcome> outcomes;
  for (const std::string& name : names) {
    schedule::Program program = program_of(name, shape, file, mode);
    plan::Costs costs = costs_for(file, program.placement().stage_to_rank());
    if (shape.costs_path.empty() && names.size() > 1) scale_costs(costs, program.ranks());
    const double bound =
        lower_bound(program.placement(), program.microbatches(), costs, program.has_backward());
    plan::Simulation simulation = simulate(program, costs);
    outcomes.push_back({std::move(program), std::move(simulation), bound});
  }
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
  write_picture(view::draw(outcomes.front().simulation, file.time_unit), picture, output);
  return 0;
}

}  // namespace penstock::tool
