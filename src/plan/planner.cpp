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
#include <tuple>

namespace penstock::plan {
namespace {

constexpr std::size_t kMaxAutoActions = 30'000;  //!< above this, Auto's search takes too long for the planner

constexpr SimulateOptions kBrief{.memory_samples = false, .critical_path = false};

struct Case {
  ScheduleChoice schedule;
  int stages_per_rank;
  int microbatches;
  bool recompute;
};

class Planner {
 public:
  Planner(std::span<const Layer> layers, const Costs& costs, const PlanOptions& options)
      : layers_(layers), costs_(costs), options_(options) {}

  PlanResult run() {
    check();
    for (const Case& one : cases()) consider(one);
    program_.reset();
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
          all.push_back({choice, v, m, false});
          if (options_.recomputation) all.push_back({choice, v, m, true});
        }
      }
    }
    if (all.empty()) throw UsageError("none of the schedules supports the given numbers of stages per rank");
    return all;
  }

  StageCosts prepared(const StageCosts& stage, const Case& one) const {
    const int measured = options_.measured_microbatches.value_or(options_.microbatches.front());
    StageCosts result = resize(stage, static_cast<double>(measured) / one.microbatches, costs_.overhead);
    result.recompute = result.recompute || one.recompute;
    return result;
  }

  std::vector<Layer> prepared_layers(const Case& one) const {
    std::vector<Layer> layers(layers_.begin(), layers_.end());
    for (Layer& layer : layers) layer.costs = prepared(layer.costs, one);
    return layers;
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
    PartitionOptions options{placement.stage_to_rank(), std::move(in_flight), options_.memory_cap};
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
    plan.first_layer =
        search_partition(layers, program, costs, options_.memory_cap, plan.first_layer).first_layer;
    costs.stages = make_stages(layers, plan.first_layer);
  }

  //! The same program serves the cases with and without recomputation, which follow each other.
  const schedule::Program& program_of(schedule::ScheduleKind kind, const schedule::ScheduleShape& shape) {
    const std::tuple key{kind, shape.stages_per_rank, shape.microbatches};
    if (!program_ || program_key_ != key) {
      program_.reset();
      program_ = make_program(make_compact_schedule(kind, shape), options_.send_mode);
      program_key_ = key;
    }
    return *program_;
  }

  void consider(const Case& one) {
    Plan plan{.schedule = one.schedule,
              .stages_per_rank = one.stages_per_rank,
              .microbatches = one.microbatches,
              .recompute = one.recompute};
    try {
      const schedule::ScheduleShape shape{options_.ranks, one.stages_per_rank, one.microbatches};
      const auto* const kind = std::get_if<schedule::ScheduleKind>(&one.schedule);
      if (kind == nullptr) {
        consider_auto(one, shape, plan);
      } else {
        check_shape(*kind, shape);
        const schedule::Program& program = program_of(*kind, shape);
        std::vector<int> in_flight;
        for (int s = 0; s < shape.num_stages(); ++s)
          in_flight.push_back(std::max(1, program.peak_in_flight(StageId(s))));
        Costs costs = partition_stages(one, program.placement(), in_flight, plan);
        refine(one, program, costs, plan);
        evaluate(plan, program, costs);
        auto& best = best_partitions_[{one.stages_per_rank, one.microbatches, one.recompute}];
        if (plan.verdict == PlanVerdict::Slower && plan.step_time < best.step_time) {
          best = {plan.step_time, costs, plan.first_layer};
        }
      }
    } catch (const UsageError& error) {
      plan.why = error.message();
    } catch (const ScheduleError& error) {
      plan.why = error.message();
    }
    result_.plans.push_back(std::move(plan));
  }

  void consider_auto(const Case& one, const schedule::ScheduleShape& shape, Plan& plan) {
    if (3 * static_cast<std::size_t>(shape.num_stages()) * static_cast<std::size_t>(shape.microbatches) >
        kMaxAutoActions) {
      throw UsageError("the schedule has too many actions for Auto", {},
                       "use fewer microbatches or stages per rank, or a named schedule");
    }
    // Starts from the partition of the best named plan, so that Auto is never slower. Without one, partitions
    // for typical numbers of microbatches in flight.
    Costs costs;
    if (const auto named = best_partitions_.find({one.stages_per_rank, one.microbatches, one.recompute});
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
      const AutoOptions how{.memory_cap = options_.memory_cap, .send_mode = options_.send_mode};
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
    evaluate(plan, program, costs);
  }

  static double time_without_links(const schedule::Program& program, const Costs& costs, double with_links) {
    if (costs.link == Link{} && costs.links.empty()) return with_links;
    Costs free = costs;
    free.link = {};
    free.links.clear();
    return simulate(program, free, kBrief).step_time;
  }

  void evaluate(Plan& plan, const schedule::Program& program, const Costs& costs) {
    const Simulation result = simulate(program, costs, kBrief);
    plan.step_time = result.step_time;
    plan.bubble = result.bubble;
    plan.peak_memory = result.peak_memory();
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
    if (plan.verdict != PlanVerdict::Slower || (best_ && sort_key(plan) >= sort_key(*best_))) return;
    best_ = plan;
    result_.schedule = compute_only(program.draft());
    result_.schedule->name = program.name();
  }

  //! On ties, prefers the simpler plan: a named schedule, no recomputation, fewer stages, less memory.
  static std::tuple<int, double, bool, bool, int, std::uint64_t> sort_key(const Plan& plan) {
    const bool too_large = plan.verdict == PlanVerdict::DoesNotFit;
    return {
        static_cast<int>(plan.verdict), too_large ? static_cast<double>(plan.peak_memory) : plan.step_time,
        is_auto(plan.schedule),         plan.recompute,
        plan.stages_per_rank,           plan.peak_memory};
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
        {{plan.recompute && !best.recompute       ? "recomputation"
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

  //! By stages per rank, microbatches, recomputation.
  std::map<std::tuple<int, int, bool>, BestPartition> best_partitions_;
  std::span<const Layer> layers_;
  const Costs& costs_;
  const PlanOptions& options_;
  PlanResult result_;
  std::optional<Plan> best_;                  //!< so far
  std::optional<schedule::Program> program_;  //!< of `program_key_`
  std::tuple<schedule::ScheduleKind, int, int> program_key_{};
};

}  // namespace

PlanResult plan_layers(std::span<const Layer> layers, const Costs& links, const PlanOptions& options) {
  if (layers.empty()) throw UsageError("a plan needs at least one layer");
  return Planner(layers, links, options).run();
}

PlanResult plan_stages(const Costs& costs, const PlanOptions& options) {
  if (costs.stages.empty()) throw UsageError("a plan needs at least one stage");
  return Planner({}, costs, options).run();
}

}  // namespace penstock::plan
