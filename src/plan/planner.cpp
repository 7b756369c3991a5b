// Enumerates the candidates, partitions the model for each, and simulates it twice: with the given links and
// with free links, to separate communication from bubble. Then sorts and explains the results.
#include "base/text.h"
#include "plan/partition_search.h"
#include "plan/resize.h"

#include <penstock/base/error.h>
#include <penstock/plan/auto_schedule.h>
#include <penstock/plan/partition.h>
#include <penstock/plan/planner.h>
#include <penstock/schedule/generate.h>
#include <penstock/schedule/lower.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <tuple>

namespace penstock::plan {
namespace {

constexpr std::size_t kMaxAutoActions = 30'000;  //!< above this, Auto's search takes too long for the planner

constexpr std::size_t kMaxModuleCounts = 16;  //!< numbers of recomputed modules that a plan tries

constexpr SimulateOptions kBrief{.memory_samples = false, .critical_path = false};

struct Case {
  ScheduleChoice schedule;
  int stages_per_rank;
  int microbatches;
  bool recompute;           //!< all stages
  std::size_t modules = 0;  //!< that are recomputed
  bool capped = true;       //!< whether partitions must fit under the memory cap
};

//! A plan with its program, whose schedule is the result if the plan is the best one.
struct PlanCandidate {
  Plan plan;
  std::shared_ptr<const schedule::Program> program{};

  bool fits() const { return plan.verdict == PlanVerdict::Slower; }
};

void recompute_part(Layer& layer, const RecomputableModule::Part& part) {
  layer.costs.activation_bytes -= std::min(part.bytes, layer.costs.activation_bytes);
  layer.costs.input += part.time;
  if (layer.costs.backward) *layer.costs.backward += part.time;
}

class Planner {
 public:
  Planner(std::span<const Layer> layers, const Costs& costs, const PlanOptions& options)
      : layers_(layers), costs_(costs), options_(options) {}

  PlanResult run() {
    check();
    for (const Case& one : cases()) {
      PlanCandidate without = consider(one);
      const bool more = options_.memory_cap && !one.recompute && modules() > 0;
      std::optional<PlanCandidate> with = more ? with_modules(one, without) : std::nullopt;
      add(std::move(without));
      if (with) add(*std::move(with));
    }
    if (best_program_) {
      result_.schedule = compute_only(best_program_->draft());
      result_.schedule->name = best_program_->name();
    }
    rank();
    return std::move(result_);
  }

 private:
  void check() const {
    if (options_.ranks < 1) throw UsageError("a plan needs at least one rank", {}, "set ranks to 1 or more");
    if (options_.microbatches.empty())
      throw UsageError("a plan needs at least one number of microbatches", {},
                       "list the numbers to try in microbatches, such as 4 and 8");
    for (const int count : options_.microbatches) {
      if (count < 1)
        throw UsageError(str_cat("microbatches must be 1 or more, not ", count), {},
                         "remove this number from the list, or replace it by 1 or more");
    }
    const int most = *std::max_element(options_.microbatches.begin(), options_.microbatches.end());
    check_layers(layers_, most);
    Costs shared = costs_;
    if (!layers_.empty()) shared.stages.clear();
    check_costs(shared, static_cast<int>(shared.stages.size()), most);
    for (const RecomputableModule& module : options_.modules) {
      for (const RecomputableModule::Part& part : module.parts) {
        const bool exists = part.layer >= 0 && static_cast<std::size_t>(part.layer) < layers_.size();
        if (!exists || !(part.time >= 0) || !std::isfinite(part.time))
          throw UsageError("the costs of the module " + quote(module.name, 200) + " are not valid");
      }
    }
  }

  std::size_t modules() const {
    return options_.recomputation && !layers_.empty() ? options_.modules.size() : 0;
  }

  std::vector<ScheduleChoice> choices() const {
    if (!options_.schedules.empty()) return options_.schedules;
    std::vector<ScheduleChoice> all;
    for (const schedule::ScheduleInfo& info : schedule::schedule_infos()) {
      if (info.has_backward) all.emplace_back(info.kind);
    }
    all.emplace_back(AutoSchedule{});
    return all;
  }

  std::vector<int> stage_counts() const {
    if (layers_.empty()) {
      const int stages = static_cast<int>(costs_.stages.size());
      if (stages % options_.ranks != 0) {
        throw UsageError(
            str_cat(stages, " stages cannot be divided evenly among ", options_.ranks, " ranks"));
      }
      return {stages / options_.ranks};
    }
    std::vector<int> counts;
    for (const int count : options_.stages_per_rank) {
      if (static_cast<std::size_t>(count) * static_cast<std::size_t>(options_.ranks) <= layers_.size())
        counts.push_back(count);
    }
    if (counts.empty()) {
      throw UsageError(str_cat(layers_.size(), " layers cannot fill ", options_.ranks, " ranks"));
    }
    return counts;
  }

  std::vector<Case> cases() const {
    std::vector<Case> all;
    const std::vector<int> counts = stage_counts();
    for (const ScheduleChoice& choice : choices()) {
      const auto* const kind = std::get_if<schedule::ScheduleKind>(&choice);
      for (const int v : counts) {
        if (kind != nullptr && info_of(*kind).only_stages_per_rank.value_or(v) != v) continue;
        for (const int m : options_.microbatches) {
          all.push_back({choice, v, m, false, 0, true});
          if (options_.recomputation) all.push_back({choice, v, m, true, 0, true});
        }
      }
    }
    if (all.empty()) throw UsageError("none of the schedules supports the given numbers of stages per rank");
    return all;
  }

  //! The size of a microbatch, relative to that of the costs.
  double size_ratio(const Case& one) const {
    const int measured = options_.measured_microbatches.value_or(options_.microbatches.front());
    return static_cast<double>(measured) / one.microbatches;
  }

  StageCosts prepared(const StageCosts& stage, const Case& one) const {
    StageCosts result = resize(stage, size_ratio(one), costs_.overhead);
    result.recompute = result.recompute || one.recompute;
    return result;
  }

  std::vector<Layer> prepared_layers(const Case& one) const {
    std::vector<Layer> layers(layers_.begin(), layers_.end());
    for (std::size_t i = 0; i < one.modules; ++i)
      for (const RecomputableModule::Part& part : options_.modules[i].parts)
        recompute_part(layers[static_cast<std::size_t>(part.layer)], part);
    for (Layer& layer : layers) layer.costs = prepared(layer.costs, one);
    return layers;
  }

  //! The bytes that are in memory in addition while a module is recomputed.
  std::uint64_t recomputation_bytes(const Case& one) const {
    std::uint64_t largest = 0;
    for (std::size_t i = 0; i < one.modules; ++i) largest = std::max(largest, options_.modules[i].bytes());
    return static_cast<std::uint64_t>(std::ceil(static_cast<double>(largest) * size_ratio(one)));
  }

  //! The memory cap without those bytes: a rank recomputes one module at a time.
  std::optional<std::uint64_t> cap(const Case& one) const {
    if (!options_.memory_cap || !one.capped) return std::nullopt;
    return *options_.memory_cap - std::min(recomputation_bytes(one), *options_.memory_cap);
  }

  //! The costs of the stages for a placement. Partitions layers to minimize the slowest stage.
  Costs partition_stages(const Case& one, const schedule::Placement& placement, std::vector<int> in_flight,
                         Plan& plan) const {
    Costs costs = costs_;
    if (layers_.empty()) {
      for (StageCosts& stage : costs.stages) stage = prepared(stage, one);
      return costs;
    }
    const std::vector<Layer> layers = prepared_layers(one);
    PartitionOptions options{placement.stage_to_rank(), std::move(in_flight), cap(one)};
    std::optional<Partition> found = partition_layers(layers, options);
    // The stages of a rank need not peak at the same time, so a partition above the cap may still fit.
    options.memory_cap.reset();
    if (!found) found = partition_layers(layers, options);
    plan.first_layer = found->first_layer;
    costs.stages = std::move(found->stages);
    return costs;
  }

  //! Changes the partition to minimize the step time of the program.
  void refine(const Case& one, const schedule::Program& program, Costs& costs, Plan& plan) const {
    if (layers_.empty()) return;
    const std::vector<Layer> layers = prepared_layers(one);
    plan.first_layer = search_partition(layers, program, costs, cap(one), plan.first_layer).first_layer;
    costs.stages = make_stages(layers, plan.first_layer);
  }

  //! The same program serves cases that differ only in recomputation, which follow each other.
  std::shared_ptr<const schedule::Program> program_of(schedule::ScheduleKind kind,
                                                      const schedule::ScheduleShape& shape) {
    const std::tuple key{kind, shape.stages_per_rank, shape.microbatches};
    if (!program_ || program_key_ != key) {
      program_.reset();
      program_ = std::make_shared<const schedule::Program>(
          make_program(make_compact_schedule(kind, shape), options_.send_mode));
      program_key_ = key;
    }
    return program_;
  }

  //! The fastest plan with recomputed modules; nullopt if modules do not help. A step takes at least as long
  //! with more of them, unless they make another partition fit.
  std::optional<PlanCandidate> with_modules(Case one, const PlanCandidate& without) {
    if (without.plan.verdict == PlanVerdict::Impossible) return std::nullopt;
    if (is_auto(one.schedule)) return auto_with_modules(one);
    const double uncapped = without.fits() ? consider_without_cap(one).plan.step_time : 0;
    if (uncapped >= without.plan.step_time * (1 - 1e-9)) return std::nullopt;
    std::optional<PlanCandidate> best;
    const std::size_t stride = (modules() + kMaxModuleCounts - 1) / kMaxModuleCounts;
    while (one.modules < modules()) {
      one.modules = std::min(one.modules + stride, modules());
      const PlanCandidate& rival = best ? *best : without;
      if (rival.fits() && least_time(one) >= rival.plan.step_time) break;
      PlanCandidate more = consider(one);
      if (sort_key(more.plan) < sort_key(rival.plan)) best = std::move(more);
    }
    return best;
  }

  PlanCandidate consider_without_cap(Case one) {
    one.capped = false;
    return consider(one);
  }

  //! The step time if the computations were divided evenly over the ranks.
  double least_time(const Case& one) const {
    double sum = 0;
    for (const Layer& layer : prepared_layers(one))
      sum += layer.costs.total_time() - costs_.overlap * layer.costs.forward;
    return sum * one.microbatches / options_.ranks;
  }

  //! Searching an order takes long, so Auto recomputes the modules of the fastest named plan.
  std::optional<PlanCandidate> auto_with_modules(Case one) {
    double least = std::numeric_limits<double>::infinity();
    for (const auto& [key, found] : best_partitions_) {
      const auto& [stages_per_rank, microbatches, recompute, modules] = key;
      const bool same = stages_per_rank == one.stages_per_rank && microbatches == one.microbatches;
      if (!same || recompute || modules == 0 || found.step_time >= least) continue;
      least = found.step_time;
      one.modules = modules;
    }
    return one.modules > 0 ? std::optional(consider(one)) : std::nullopt;
  }

  PlanCandidate consider(const Case& one) {
    PlanCandidate candidate{.plan = {.schedule = one.schedule,
                                     .stages_per_rank = one.stages_per_rank,
                                     .microbatches = one.microbatches,
                                     .recompute = one.recompute}};
    Plan& plan = candidate.plan;
    for (std::size_t i = 0; i < one.modules; ++i) plan.recomputed_modules.push_back(options_.modules[i].name);
    try {
      const schedule::ScheduleShape shape{options_.ranks, one.stages_per_rank, one.microbatches};
      const auto* const kind = std::get_if<schedule::ScheduleKind>(&one.schedule);
      if (kind == nullptr) {
        candidate.program = std::make_shared<const schedule::Program>(consider_auto(one, shape, plan));
      } else {
        check_shape(*kind, shape);
        candidate.program = program_of(*kind, shape);
        const schedule::Program& program = *candidate.program;
        std::vector<int> in_flight;
        for (int s = 0; s < shape.num_stages(); ++s)
          in_flight.push_back(std::max(1, program.peak_in_flight(StageId(s))));
        Costs costs = partition_stages(one, program.placement(), in_flight, plan);
        refine(one, program, costs, plan);
        evaluate(one, plan, program, costs);
        auto& best = best_partitions_[key_of(one)];
        if (one.capped && plan.verdict == PlanVerdict::Slower && plan.step_time < best.step_time) {
          best = {plan.step_time, costs, plan.first_layer};
        }
      }
    } catch (const UsageError& error) {
      plan.why = error.message();
    } catch (const ScheduleError& error) {
      plan.why = error.message();
    }
    return candidate;
  }

  schedule::Program consider_auto(const Case& one, const schedule::ScheduleShape& shape, Plan& plan) {
    if (3 * static_cast<std::size_t>(shape.num_stages()) * static_cast<std::size_t>(shape.microbatches) >
        kMaxAutoActions) {
      throw UsageError("the schedule has too many actions for Auto", {},
                       "use fewer microbatches or stages per rank, or a named schedule");
    }
    // Starts from the partition of the best named plan, so that Auto is never slower. Without one, partitions
    // for typical numbers of microbatches in flight.
    Costs costs;
    if (const auto named = best_partitions_.find(key_of(one));
        named != best_partitions_.end() && !named->second.costs.stages.empty()) {
      costs = named->second.costs;
      plan.first_layer = named->second.first_layer;
    } else {
      const schedule::Placement placement =
          schedule::Placement::make(shape.ranks, shape.num_stages(), schedule::PlacementStyle::Loop);
      std::vector<int> in_flight;
      for (int s = 0; s < shape.num_stages(); ++s) {
        in_flight.push_back(std::min(shape.microbatches, std::max(1, shape.ranks - s / one.stages_per_rank)));
      }
      costs = partition_stages(one, placement, in_flight, plan);
    }
    const auto make = [&] {
      const AutoOptions how{.memory_cap = cap(one), .send_mode = options_.send_mode};
      return make_program(make_auto_schedule(shape.ranks, shape.microbatches, costs, how).schedule,
                          options_.send_mode);
    };
    schedule::Program program = make();
    const std::vector<int> before = plan.first_layer;
    refine(one, program, costs, plan);
    if (plan.first_layer != before) {  // another partition may need another order
      schedule::Program other = make();
      if (simulate(other, costs, kBrief).step_time < simulate(program, costs, kBrief).step_time) {
        program = std::move(other);
        refine(one, program, costs, plan);
      }
    }
    evaluate(one, plan, program, costs);
    return program;
  }

  static double time_without_links(const schedule::Program& program, const Costs& costs, double with_links) {
    if (costs.link == Link{} && costs.links.empty()) return with_links;
    Costs free = costs;
    free.link = {};
    free.links.clear();
    return simulate(program, free, kBrief).step_time;
  }

  void evaluate(const Case& one, Plan& plan, const schedule::Program& program, const Costs& costs) {
    const Simulation result = simulate(program, costs, kBrief);
    plan.step_time = result.step_time;
    plan.bubble = result.bubble;
    plan.peak_memory = result.peak_memory() + recomputation_bytes(one);
    plan.verdict = options_.memory_cap && plan.peak_memory > *options_.memory_cap ? PlanVerdict::DoesNotFit
                                                                                  : PlanVerdict::Slower;

    const double without_links = time_without_links(program, costs, result.step_time);
    double busiest = 0;
    for (const RankReport& rank : result.ranks) {
      busiest = std::max(busiest, rank.busy);
      plan.shares.compute += rank.busy / static_cast<double>(result.ranks.size());
    }
    plan.shares.imbalance = busiest - plan.shares.compute;
    plan.shares.bubble = without_links - busiest;
    plan.shares.communication = result.step_time - without_links;
  }

  void add(PlanCandidate candidate) {
    Plan& plan = candidate.plan;
    if (candidate.fits() && (!best_ || sort_key(plan) < sort_key(*best_))) {
      best_ = plan;
      best_program_ = candidate.program;
    }
    result_.plans.push_back(std::move(plan));
  }

  //! On ties, prefers the simpler plan: a named schedule, no recomputation, fewer stages, less memory.
  static std::tuple<int, double, bool, bool, std::size_t, int, std::uint64_t> sort_key(const Plan& plan) {
    const bool too_large = plan.verdict == PlanVerdict::DoesNotFit;
    return {static_cast<int>(plan.verdict),
            too_large ? static_cast<double>(plan.peak_memory) : plan.step_time,
            is_auto(plan.schedule),
            plan.recompute,
            plan.recomputed_modules.size(),
            plan.stages_per_rank,
            plan.peak_memory};
  }

  void rank() {
    std::stable_sort(result_.plans.begin(), result_.plans.end(),
                     [](const Plan& a, const Plan& b) { return sort_key(a) < sort_key(b); });
    for (Plan& plan : result_.plans) {
      if (plan.verdict == PlanVerdict::DoesNotFit)
        plan.why = "does not fit: needs " + format_bytes(plan.peak_memory);
    }
    if (result_.plans.empty() || result_.plans.front().verdict != PlanVerdict::Slower) return;
    Plan& best = result_.plans.front();
    best.verdict = PlanVerdict::Best;
    for (Plan& plan : result_.plans) {
      if (plan.verdict == PlanVerdict::Slower) plan.why = reason(plan, best);
    }
  }

  //! The part of the step time in which the plan loses most to the best plan.
  std::string reason(const Plan& plan, const Plan& best) const {
    const double excess = plan.step_time - best.step_time;
    if (excess <= best.step_time * 1e-9) return "as fast";
    const auto parts = std::to_array<std::pair<const char*, double>>(
        {{recomputes(plan) && !recomputes(best)   ? "recomputation"
          : plan.microbatches > best.microbatches ? "overhead of more microbatches"
                                                  : "less overlap",
          plan.shares.compute - best.shares.compute},
         {"uneven stages", plan.shares.imbalance - best.shares.imbalance},
         {"bubble", plan.shares.bubble - best.shares.bubble},
         {"communication", plan.shares.communication - best.shares.communication}});
    const auto most = std::max_element(parts.begin(), parts.end(),
                                       [](const auto& a, const auto& b) { return a.second < b.second; });
    return formatted("%s: %+.1f%% of the best step time", most->first, 100 * most->second / best.step_time);
  }

  struct BestPartition {
    double step_time = std::numeric_limits<double>::infinity();
    Costs costs;
    std::vector<int> first_layer;
  };

  //! Stages per rank, microbatches, recomputation.
  using PartitionKey = std::tuple<int, int, bool, std::size_t>;
  static PartitionKey key_of(const Case& one) {
    return {one.stages_per_rank, one.microbatches, one.recompute, one.modules};
  }
  static bool recomputes(const Plan& plan) { return plan.recompute || !plan.recomputed_modules.empty(); }

  std::map<PartitionKey, BestPartition> best_partitions_;
  std::span<const Layer> layers_;
  const Costs& costs_;
  const PlanOptions& options_;
  PlanResult result_;
  std::optional<Plan> best_;  //!< so far
  std::shared_ptr<const schedule::Program> best_program_;
  std::shared_ptr<const schedule::Program> program_;  //!< of `program_key_`
  std::tuple<schedule::ScheduleKind, int, int> program_key_{};
};

}  // namespace

std::uint64_t RecomputableModule::bytes() const {
  std::uint64_t sum = 0;
  for (const Part& part : parts) sum += part.bytes;
  return sum;
}

PlanResult plan_layers(std::span<const Layer> layers, const Costs& links, const PlanOptions& options) {
  if (layers.empty()) throw UsageError("a plan needs at least one layer");
  return Planner(layers, links, options).run();
}

PlanResult plan_stages(const Costs& costs, const PlanOptions& options) {
  if (costs.stages.empty()) throw UsageError("a plan needs at least one stage");
  return Planner({}, costs, options).run();
}

}  // namespace penstock::plan
