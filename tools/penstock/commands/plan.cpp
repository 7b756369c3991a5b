// `penstock plan`: finds the fastest partition and schedule, and explains why the others were rejected.
#include "base/option_ranges.h"
#include "base/text.h"
#include "cli/arguments.h"
#include "cli/start_torch.h"
#include "cli/units.h"
#include "commands/commands.h"
#include "config/model_costs.h"
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

std::string recomputation_text(const plan::Plan& plan) {
  if (plan.recompute) return "yes";
  return plan.recomputed_modules.empty()
             ? "no"
             : counted(static_cast<std::int64_t>(plan.recomputed_modules.size()), "module");
}

std::string report(const plan::PlanResult& result, const CostFile& file, std::size_t top) {
  const view::TimeUnit unit = file.time_unit;
  std::string text;
  const plan::Plan& best = result.plans.front();
  if (best.verdict == plan::PlanVerdict::Best) {
    text +=
        str_cat(to_string(best.schedule), ", ", counted(best.stages_per_rank, "stage"), " per rank, ",
                best.microbatches, " microbatches",
                (best.recompute                    ? ", recomputing activations"
                 : best.recomputed_modules.empty() ? ""
                                                   : ", recomputing " + join(best.recomputed_modules, ", ")),
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
                    std::to_string(plan.microbatches), recomputation_text(plan),
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

//! What the plan of an exported model depends on, and what its training repeats.
struct ModelOptions {
  std::string model;
  std::optional<double> flops;
  std::optional<std::string> input;
  std::string optimizer = "adamw", parameter_dtype = "auto", device = "cpu";
  double momentum = 0;

  void declare(Arguments& arguments) {
    using Names = std::vector<std::pair<std::string, std::string>>;
    arguments.option("--model", model, "an archive written by torch.export.save, instead of --costs");
    arguments.option("--flops", flops,
                     "with --model: floating-point operations per second, used to estimate times");
    arguments.option("--input", input,
                     "with --model: a safetensors file of examples; times are measured instead of estimated");
    arguments.choice("--device", device, Names{{"cpu", "cpu"}, {"cuda", "cuda"}, {"auto", "auto"}},
                     "with --model and --input: device on which times are measured");
    Names optimizers;
    for (const char* const name : {"adamw", "adam", "sgd", "adagrad", "rmsprop"})
      optimizers.emplace_back(name, name);
    arguments.choice("--optimizer", optimizer, optimizers,
                     "with --model: the optimizer of the run, whose states take memory");
    arguments.option("--momentum", momentum, "with --model: momentum of sgd and rmsprop");
    arguments.choice(
        "--param-dtype", parameter_dtype, Names{{"auto", "auto"}, {"float32", "float32"}, {"bf16", "bf16"}},
        "with --model: dtype of the parameters that stages compute with; auto: that of the model. "
        "The optimizer always updates float32 master weights");
  }

  //! Throws UsageError if an option needs a model, but none is given.
  void check(const Arguments& arguments) const {
    if (!model.empty()) return;
    for (const char* const name :
         {"--flops", "--input", "--device", "--optimizer", "--momentum", "--param-dtype"})
      if (arguments.given(name))
        throw UsageError(std::string(name) + " requires --model", {}, "add --model MODEL.pt2, or remove it");
  }

  //! The options of training that change the memory.
  std::vector<std::string> training() const {
    std::vector<std::string> words;
    if (optimizer != "adamw") words.insert(words.end(), {"--optimizer", optimizer});
    if (momentum != 0) words.insert(words.end(), {"--momentum", formatted("%g", momentum)});
    if (parameter_dtype != "auto") words.insert(words.end(), {"--param-dtype", parameter_dtype});
    return words;
  }

  //! Runs `penstock costs`. Returns its exit code if it fails.
  std::variant<ModelCosts, int> costs(int ranks) const {
    // A few layers per possible stage. The search for Auto grows quickly with their number.
    const int layers = std::clamp(8 * ranks, 16, 64);
    std::vector<std::string> args{model, "--json", "--layers", std::to_string(layers)};
    if (flops) args.insert(args.end(), {"--flops", std::to_string(*flops)});
    if (input) args.insert(args.end(), {"--input", *input});
    if (device != "cpu") args.insert(args.end(), {"--device", device});
    const std::vector<std::string> more = training();
    args.insert(args.end(), more.begin(), more.end());
    const TorchOutput found = output_of_torch("costs", args);
    if (found.code != 0) return found.code;
    return read_model_costs(found.text);
  }
};

//! The command that trains the model with the best plan. `table` is the file with its schedule; if it is
//! empty, the schedule has a name.
std::vector<std::string> train_command_of(const plan::Plan& best, const plan::PlanOptions& options,
                                          const ModelOptions& asked, const ModelCosts& costs,
                                          const std::string& table) {
  std::vector<std::string> words{"penstock", "train", asked.model, "--data", "FILE.safetensors"};
  const auto add = [&](const char* option, const std::string& value) {
    words.insert(words.end(), {option, value});
  };
  add("--ranks", std::to_string(options.ranks));
  add("--schedule", table.empty() ? to_string(best.schedule) : table);
  add("--stages-per-rank", std::to_string(best.stages_per_rank));
  add("--microbatches", std::to_string(best.microbatches));
  // The costs are those of a batch of this many of their microbatches.
  if (costs.microbatch_rows > 0)
    add("--batch", std::to_string(costs.microbatch_rows * options.microbatches.front()));
  std::vector<std::int64_t> cuts;
  for (std::size_t s = 1; s + 1 < best.first_layer.size(); ++s)
    cuts.push_back(costs.first_operators.at(static_cast<std::size_t>(best.first_layer[s])));
  if (!cuts.empty()) add("--cuts", join(cuts, ","));
  if (best.recompute) words.emplace_back("--recompute");
  if (!best.recomputed_modules.empty()) words.push_back("--recompute=" + join(best.recomputed_modules, ","));
  const std::vector<std::string> training = asked.training();
  words.insert(words.end(), training.begin(), training.end());
  if (asked.device == "cuda") add("--device", "cuda");
  return words;
}

std::string shell_text(const std::vector<std::string>& words) {
  std::vector<std::string> quoted;
  for (const std::string& word : words) quoted.push_back(shell_word(word));
  return join(quoted, " ");
}

std::string to_json(const plan::PlanResult& result, const std::vector<std::string>& train_command) {
  JsonWriter out;
  write_plans(out, result.plans, train_command);
  return out.text() + "\n";
}

//! A model that was exported with a fixed batch cannot run smaller or larger microbatches.
void check_fixed_rows(const ModelCosts& model, const plan::PlanOptions& options) {
  if (!model.fixed_rows || options.microbatches.size() == 1) return;
  throw UsageError(str_cat("the model was exported with a fixed batch of ", model.microbatch_rows,
                           ", so other numbers of microbatches would change the size of the batch"),
                   {}, "give one number to --microbatches, or export with a dynamic batch dim");
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
  std::string costs, cap, save;
  ModelOptions asked;
  bool no_recomputation = false;
  arguments.option("--ranks", ranks, "number of pipeline ranks (processes)", Arguments::Need::Required);
  arguments.option("--microbatches", microbatches,
                   "counts to try: 8,16,32; costs apply to the first unless the cost file sets microbatches");
  arguments.option("--costs", costs,
                   "a TOML cost file of layers or stages (default: four equal layers per rank)");
  asked.declare(arguments);
  arguments.option("--memory-cap", cap, "memory limit per rank: 16GiB");
  arguments.option("--stages-per-rank", stages_per_rank, "counts to try: 1,2 (default: 1 to 4)");
  arguments.option("--schedules", schedules, "schedules to try: 1F1B,ZB1P,Auto (default: all)");
  arguments.suggest("--schedules", plan::schedule_choice_names());
  arguments.flag("--no-recomputation", no_recomputation, "do not try activation recomputation");
  arguments.choice("--send-mode", options.send_mode, send_mode_choices(), "how the transport treats a send");
  arguments.option("--top", top, "number of rows to show; 0: all");
  arguments.option("--save", save,
                   "write the best schedule to this CSV file [with --model, auto_schedule.csv if it is "
                   "generated]");
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

  if (!costs.empty() && !asked.model.empty())
    throw UsageError("--costs and --model are mutually exclusive", {},
                     "use --costs for a cost file, or --model to estimate the costs of an archive");
  asked.check(arguments);
  CostFile file;
  ModelCosts model;
  if (!asked.model.empty()) {
    auto found = asked.costs(options.ranks);
    if (const int* const code = std::get_if<int>(&found)) return *code;
    model = std::get<ModelCosts>(std::move(found));
    check_fixed_rows(model, options);
    file = model.file;
    options.modules = model.modules;
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
  const plan::Plan& best = result.plans.front();
  const bool is_model_plan = !asked.model.empty() && best.verdict == plan::PlanVerdict::Best;
  const bool is_generated = plan::is_auto(best.schedule);
  if (is_model_plan && is_generated && save.empty()) save = "auto_schedule.csv";
  if (!save.empty() && result.schedule) write_output(save, to_csv(*result.schedule));
  std::vector<std::string> command;
  if (is_model_plan) command = train_command_of(best, options, asked, model, is_generated ? save : "");
  if (arguments.json()) {
    print(to_json(result, command));
  } else {
    print(report(result, file, static_cast<std::size_t>(std::max<std::int64_t>(0, top))));
    if (is_model_plan && is_generated) print("\nthe schedule was written to " + save + "\n");
    if (is_model_plan) print("\nto train with this plan:\n  " + shell_text(command) + "\n");
  }
  return result.plans.front().verdict == plan::PlanVerdict::Best ? 0 : 1;
}

}  // namespace penstock::tool
