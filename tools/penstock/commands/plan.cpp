// `penstock plan`: finds the fastest partition and schedule, and explains why the others were rejected.
#include "base/option_ranges.h"
#include "base/text.h"
#include "cli/arguments.h"
#include "cli/start_torch.h"
#include "cli/units.h"
#include "commands/commands.h"
#include "config/source.h"
#include "report/results_json.h"
#include "view/quantity_text.h"

#include <penstock/base/error.h>
#include <penstock/plan/planner.h>
#include <penstock/schedule/csv.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstring>
#include <variant>

namespace penstock::tool {
namespace {

constexpr int kLayersPerRank = 4;  //!< layers per rank of the default model (no cost file)

int positive_integer(const std::string& text, const char* option) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 1) {
    throw UsageError(std::string(option) + " " + quote(text) + " is not a positive integer");
  }
  return value;
}

std::vector<int> positive_integers(const std::vector<std::string>& texts, const char* option) {
  std::vector<int> result;
  for (const std::string& text : texts) result.push_back(positive_integer(text, option));
  return result;
}

std::string layers_text(const plan::Plan& plan, std::size_t stage, const std::vector<plan::Layer>& layers) {
  const int from = plan.first_layer[stage], to = plan.first_layer[stage + 1];
  const std::string first = layers[static_cast<std::size_t>(from)].name;
  const std::string last = layers[static_cast<std::size_t>(to) - 1].name;
  return to - from == 1 ? first : first + " to " + last;
}

std::string report(const plan::PlanResult& result, const CostFile& file, std::size_t top) {
  const view::TimeUnit unit = file.time_unit;
  std::string text;
  const plan::Plan& best = result.plans.front();
  if (best.verdict == plan::PlanVerdict::Best) {
    text += str_cat(to_string(best.schedule), ", ", counted(best.stages_per_rank, "stage"), " per rank, ",
                    best.microbatches, " microbatches", (best.recompute ? ", recomputing activations" : ""),
                    ": ", format_time(best.step_time, unit), " per step, bubble ", format_share(best.bubble),
                    ", peak memory ", format_memory(best.peak_memory, unit), "\n");
    for (std::size_t s = 0; s + 1 < best.first_layer.size(); ++s) {
      text += str_cat("  stage ", s, " on rank ", result.schedule->placement.stage_to_rank()[s].value, ": ",
                      layers_text(best, s, file.layers), "\n");
    }
    text += "\n";
  } else {
    text += "nothing fits\n\n";
  }
  std::vector<std::vector<std::string>> rows{{"schedule", "stages per rank", "microbatches", "recompute",
                                              "step time", "bubble", "peak memory", "reason"}};
  std::size_t shown = 0;
  for (const plan::Plan& plan : result.plans) {
    if (top > 0 && shown++ >= top) break;
    const bool ran = plan.verdict != plan::PlanVerdict::Impossible;
    rows.push_back({to_string(plan.schedule), std::to_string(plan.stages_per_rank),
                    std::to_string(plan.microbatches), plan.recompute ? "yes" : "no",
                    ran ? format_time(plan.step_time, unit) : "", ran ? format_share(plan.bubble) : "",
                    ran ? format_memory(plan.peak_memory, unit) : "",
                    plan.verdict == plan::PlanVerdict::Best ? "best" : plan.why});
  }
  text += show_table(rows);
  if (rows.size() - 1 < result.plans.size()) {
    text += str_cat("… and ", result.plans.size() - rows.size() + 1, " more (--top 0 shows all)\n");
  }
  return text;
}

//! Quotes a word for the shell if necessary.
std::string shell_word(const std::string& word) {
  const auto plain = [](unsigned char c) {
    return std::isalnum(c) != 0 || std::strchr("_-./=,:+", c) != nullptr;
  };
  if (!word.empty() && std::all_of(word.begin(), word.end(), plain)) return word;
  std::string quoted = "'";
  for (const char c : word) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

//! The command that trains the model with the best plan. `train` balances the stages by times that it
//! measures itself: a layer of the planner may begin inside a module, where --split cannot.
std::string train_command_of(const plan::Plan& best, const std::string& model, int ranks) {
  const bool automatic = !std::holds_alternative<schedule::ScheduleKind>(best.schedule);
  return str_cat("\nto train with this plan:\n  penstock train ", shell_word(model),
                 " --data FILE.safetensors --ranks ", ranks, " --schedule ",
                 (automatic ? "auto" : to_string(best.schedule)), " --stages-per-rank ", best.stages_per_rank,
                 " --microbatches ", best.microbatches, (best.recompute ? " --recompute" : ""),
                 " --balance time\n");
}

std::string to_json(const plan::PlanResult& result) {
  JsonWriter out;
  write_plans(out, result.plans);
  return out.text() + "\n";
}

//! The default model without a cost file: equal layers, with one unit of time per rank for each of F, I and
//! W.
void fill_in_model(CostFile& file, int ranks) {
  plan::StageCosts each;
  each.forward = each.input = each.weight = 1.0 / kLayersPerRank;
  for (int i = 0; i < ranks * kLayersPerRank; ++i) file.layers.push_back({str_cat("layer.", i), each});
}

}  // namespace

int plan_command(Arguments& arguments) {
  plan::PlanOptions options;
  std::int64_t ranks = 0, top = 20;
  std::vector<std::string> microbatches, stages_per_rank, schedules;
  std::string costs, model, cap, save;
  std::optional<double> flops;
  std::optional<std::string> input;
  bool no_recomputation = false;
  arguments.option("--ranks", ranks, "number of pipeline ranks (processes)", Arguments::Need::Required);
  arguments.option("--microbatches", microbatches,
                   "counts to try: 8,16,32; costs apply to the first unless the cost file sets microbatches");
  arguments.option("--costs", costs,
                   "a TOML cost file of layers or stages (default: four equal layers per rank)");
  arguments.option("--model", model, "an archive written by torch.export.save, instead of --costs");
  arguments.option("--flops", flops,
                   "with --model: floating-point operations per second, used to estimate times");
  arguments.option("--input", input,
                   "with --model: a safetensors file of examples; times are measured instead of estimated");
  arguments.option("--memory-cap", cap, "memory limit per rank: 16GiB");
  arguments.option("--stages-per-rank", stages_per_rank, "counts to try: 1,2 (default: 1 to 4)");
  arguments.option("--schedules", schedules, "schedules to try: 1F1B,ZB1P,Auto (default: all)");
  arguments.flag("--no-recomputation", no_recomputation, "do not try activation recomputation");
  arguments.choice("--send-mode", options.send_mode, send_mode_choices(), "how the transport treats a send");
  arguments.option("--top", top, "number of rows to show; 0: all");
  arguments.option("--save", save, "write the best schedule to this CSV file");
  arguments.parse();
  options.ranks = count_option(ranks, "--ranks", schedule::kMaxStages);
  if (microbatches.empty())
    throw UsageError("plan needs --microbatches", {}, "give one or more counts: --microbatches 8,16");
  options.microbatches = positive_integers(microbatches, "--microbatches");
  if (!stages_per_rank.empty())
    options.stages_per_rank = positive_integers(stages_per_rank, "--stages-per-rank");
  for (const std::string& name : schedules) options.schedules.push_back(plan::parse_schedule_choice(name));
  options.recomputation = !no_recomputation;
  if (!cap.empty()) options.memory_cap = static_cast<std::uint64_t>(std::llround(parse_bytes(cap)));

  if (!costs.empty() && !model.empty())
    throw UsageError("--costs and --model are mutually exclusive", {},
                     "use --costs for a cost file, or --model to estimate the costs of an archive");
  if (model.empty() && (flops || input))
    throw UsageError("--flops and --input require --model", {}, "add --model MODEL.pt2, or remove them");
  CostFile file;
  if (!model.empty()) {
    // A few layers per possible stage. The search for Auto grows quickly with their number.
    const std::int64_t layers = std::clamp<std::int64_t>(8 * ranks, 16, 64);
    std::vector<std::string> args{model, "--layers", std::to_string(layers)};
    if (flops) args.insert(args.end(), {"--flops", std::to_string(*flops)});
    if (input) args.insert(args.end(), {"--input", *input});
    const TorchOutput found = output_of_torch("costs", args);
    if (found.code != 0) return found.code;
    file = read_cost_text(found.text, model);
  } else if (!costs.empty()) {
    file = read_cost_file(costs);
  } else {
    fill_in_model(file, options.ranks);
  }
  options.measured_microbatches = file.microbatches;
  plan::PlanResult result;
  if (!file.layers.empty()) {
    result = plan_layers(file.layers, file.shared, options);
  } else {
    plan::Costs shared = file.shared;
    shared.stages = file.stages;
    if (shared.stages.empty()) shared.stages.assign(static_cast<std::size_t>(ranks), file.each);
    result = plan_stages(shared, options);
  }
  print(arguments.json() ? to_json(result)
                         : report(result, file, static_cast<std::size_t>(std::max<std::int64_t>(0, top))));
  const plan::Plan& best = result.plans.front();
  if (!model.empty() && !arguments.json() && best.verdict == plan::PlanVerdict::Best)
    print(train_command_of(best, model, options.ranks));
  if (!save.empty() && result.schedule) write_output(save, to_csv(*result.schedule));
  return result.plans.front().verdict == plan::PlanVerdict::Best ? 0 : 1;
}

}  // namespace penstock::tool
