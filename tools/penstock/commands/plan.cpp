// `penstock plan`: the best partition and schedule for a machine, and why the others lost.
#include "arguments.h"
#include "commands.h"
#include "source.h"
#include "start_torch.h"
#include "units.h"

#include <penstock/base/error.h>
#include <penstock/base/json.h>
#include <penstock/base/text.h>
#include <penstock/plan/planner.h>
#include <penstock/schedule/csv.h>

#include <algorithm>
#include <charconv>
#include <cmath>

namespace penstock::tool {
namespace {

constexpr int layers_of_a_rank = 4;  //!< of the model that is planned for without a cost file

std::string verdict_name(PlanVerdict verdict) {
  switch (verdict) {
    case PlanVerdict::Best:
      return "best";
    case PlanVerdict::Slower:
      return "slower";
    case PlanVerdict::DoesNotFit:
      return "does not fit";
    case PlanVerdict::Impossible:
      return "impossible";
  }
  return "";
}

int whole_number(const std::string& word, const char* option) {
  int value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error != std::errc() || end != word.data() + word.size() || value < 1) {
    throw UsageError(std::string(option) + " " + quote(word) + " is no whole number of 1 or more");
  }
  return value;
}

std::vector<int> whole_numbers(const std::vector<std::string>& words, const char* option) {
  std::vector<int> result;
  for (const std::string& word : words) result.push_back(whole_number(word, option));
  return result;
}

std::string layers_text(const Plan& plan, std::size_t stage, const std::vector<Layer>& layers) {
  const int from = plan.first_layer[stage], to = plan.first_layer[stage + 1];
  const std::string first = layers[static_cast<std::size_t>(from)].name;
  const std::string last = layers[static_cast<std::size_t>(to) - 1].name;
  return to - from == 1 ? first : first + " to " + last;
}

std::string report(const PlanResult& result, const CostFile& file, std::size_t top) {
  const bool seconds = file.seconds;
  std::string text;
  const Plan& best = result.plans.front();
  if (best.verdict == PlanVerdict::Best) {
    text += best.schedule + ", " + std::to_string(best.stages_per_rank) +
            (best.stages_per_rank == 1 ? " stage" : " stages") + " a rank, " +
            std::to_string(best.microbatches) + " microbatches" +
            (best.recompute ? ", recomputing activations" : "") + ": " + show_time(best.step_time, seconds) +
            " a step, bubble " + show_share(best.bubble) + ", peak memory " +
            show_memory(best.peak_memory, seconds) + "\n";
    for (std::size_t s = 0; s + 1 < best.first_layer.size(); ++s) {
      text += "  stage " + std::to_string(s) + " on rank " +
              std::to_string(result.schedule->placement.stage_to_rank()[s].value) + ": " +
              layers_text(best, s, file.layers) + "\n";
    }
    text += "\n";
  } else {
    text += "nothing fits\n\n";
  }
  std::vector<std::vector<std::string>> rows{{"schedule", "stages a rank", "microbatches", "recompute",
                                              "step time", "bubble", "peak memory", "why not"}};
  std::size_t shown = 0;
  for (const Plan& plan : result.plans) {
    if (top > 0 && shown++ >= top) break;
    const bool ran = plan.verdict != PlanVerdict::Impossible;
    rows.push_back({plan.schedule, std::to_string(plan.stages_per_rank), std::to_string(plan.microbatches),
                    plan.recompute ? "yes" : "no", ran ? show_time(plan.step_time, seconds) : "",
                    ran ? show_share(plan.bubble) : "", ran ? show_memory(plan.peak_memory, seconds) : "",
                    plan.verdict == PlanVerdict::Best ? "the best" : plan.why});
  }
  text += show_table(rows);
  if (rows.size() - 1 < result.plans.size()) {
    text += "… and " + std::to_string(result.plans.size() - rows.size() + 1) + " more (--top 0 shows all)\n";
  }
  return text;
}

std::string to_json(const PlanResult& result) {
  JsonWriter out;
  out.begin_array();
  for (const Plan& plan : result.plans) {
    out.begin_object().field("schedule", plan.schedule).field("stages_per_rank", plan.stages_per_rank);
    out.field("microbatches", plan.microbatches)
        .field("recompute", plan.recompute)
        .field("verdict", verdict_name(plan.verdict));
    out.field("why", plan.why).key("first_layer").begin_array();
    for (const int layer : plan.first_layer) out.value(layer);
    out.end_array();
    if (plan.verdict != PlanVerdict::Impossible) {
      out.field("step_time", plan.step_time)
          .field("bubble", plan.bubble)
          .field("peak_memory", plan.peak_memory);
      out.key("time")
          .begin_object()
          .field("compute", plan.shares.compute)
          .field("imbalance", plan.shares.imbalance);
      out.field("bubble", plan.shares.bubble).field("communication", plan.shares.communication).end_object();
    }
    out.end_object();
  }
  out.end_array();
  return out.text() + "\n";
}

//! Without a cost file: a few equal layers a rank, one unit of time a rank for each of F, I and W.
void fill_in_model(CostFile& file, int ranks) {
  StageCosts each;
  each.forward = each.input = each.weight = 1.0 / layers_of_a_rank;
  for (int i = 0; i < ranks * layers_of_a_rank; ++i)
    file.layers.push_back({"layer." + std::to_string(i), each});
}

}  // namespace

int plan_command(Arguments& arguments) {
  PlanOptions options;
  std::int64_t ranks = 0, top = 20;
  std::vector<std::string> microbatches, stages_per_rank;
  std::string costs, model, cap, save;
  std::optional<double> flops;
  std::optional<std::string> input;
  bool no_recomputation = false;
  arguments.option("--ranks", ranks, "how many ranks (processes) hold stages", Arguments::Need::Required);
  arguments.option("--microbatches", microbatches,
                   "counts to try: 8,16,32; the costs are for the first unless the file says");
  arguments.option("--costs", costs, "a TOML file of layers or stages; without it four equal layers a rank");
  arguments.option("--model", model, "an archive that torch.export.save wrote, in place of --costs");
  arguments.option("--flops", flops, "operations a second, from which a model's times are estimated");
  arguments.option("--input", input, "examples for the model, on which its times are measured instead");
  arguments.option("--memory-cap", cap, "of each rank: 16GiB");
  arguments.option("--stages-per-rank", stages_per_rank, "numbers to try: 1,2 (else 1 to 4)");
  arguments.option("--schedules", options.schedules, "names to try: 1F1B,ZB1P,Auto (else all)");
  arguments.flag("--no-recomputation", no_recomputation, "do not try to recompute activations");
  arguments.choice(
      "--send-mode", options.mode,
      {{"buffered", SendMode::Buffered}, {"ordered", SendMode::Ordered}, {"blocking", SendMode::Blocking}},
      "what a send waits for");
  arguments.option("--top", top, "rows to show; 0 shows all");
  arguments.option("--save", save, "a csv file for the best schedule's table");
  arguments.parse();
  if (ranks < 1 || ranks > max_stages) throw UsageError("--ranks must be 1 or more");
  if (microbatches.empty())
    throw UsageError("a plan needs --microbatches", {}, "several may be given: --microbatches 8,16");
  options.ranks = static_cast<int>(ranks);
  options.microbatches = whole_numbers(microbatches, "--microbatches");
  if (!stages_per_rank.empty()) options.stages_per_rank = whole_numbers(stages_per_rank, "--stages-per-rank");
  options.recomputation = !no_recomputation;
  if (!cap.empty()) options.memory_cap = static_cast<std::uint64_t>(std::llround(parse_bytes(cap)));

  if (!costs.empty() && !model.empty()) throw UsageError("--costs and --model exclude each other");
  if (model.empty() && (flops || input)) throw UsageError("--flops and --input belong to --model");
  CostFile file;
  if (!model.empty()) {
    // A few for each stage that a rank may hold; the search for Auto grows fast with them.
    const std::int64_t layers = std::clamp<std::int64_t>(8 * ranks, 16, 64);
    std::vector<std::string> words{model, "--layers", std::to_string(layers)};
    if (flops) words.insert(words.end(), {"--flops", std::to_string(*flops)});
    if (input) words.insert(words.end(), {"--input", *input});
    const TorchOutput found = output_of_torch("costs", words);
    if (found.code != 0) return found.code;
    file = read_cost_text(found.text, model);
  } else if (!costs.empty()) {
    file = read_cost_file(costs);
  } else {
    fill_in_model(file, options.ranks);
  }
  options.measured_microbatches = file.microbatches;
  PlanResult result;
  if (!file.layers.empty()) {
    result = plan_layers(file.layers, file.shared, options);
  } else {
    Costs shared = file.shared;
    shared.stages = file.stages;
    if (shared.stages.empty()) shared.stages.assign(static_cast<std::size_t>(ranks), file.each);
    result = plan_stages(shared, options);
  }
  print(arguments.json() ? to_json(result)
                         : report(result, file, static_cast<std::size_t>(std::max<std::int64_t>(0, top))));
  if (!save.empty() && result.schedule) write_output(save, to_csv(*result.schedule));
  return result.plans.front().verdict == PlanVerdict::Best ? 0 : 1;
}

}  // namespace penstock::tool
