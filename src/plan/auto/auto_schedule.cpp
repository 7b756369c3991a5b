// Auto's search: tries the named schedules, builds orders by list scheduling with many rules, and
// improves the best few. The fastest becomes the schedule.
#include "base/text.h"
#include "plan/auto/improve.h"
#include "plan/auto/list_schedule.h"
#include "plan/auto/order.h"

#include <penstock/base/error.h>
#include <penstock/plan/auto_schedule.h>
#include <penstock/schedule/lower.h>

#include <algorithm>
#include <set>

namespace penstock::plan {
namespace {

using namespace auto_search;

constexpr std::size_t kEvaluationsTimesActions = 3'000'000;  //!< per unit of effort: about half a second
constexpr std::size_t kManyActions = 8'000;                  //!< above this, fewer rules are tried
constexpr std::size_t kStarts = 3;                           //!< number of orders to improve

struct Candidate {
  double makespan = 0;
  std::size_t problem = 0;  //!< index of the placement
  Order order;
};

std::vector<Rule> rules(const Problem& problem) {
  std::vector<Rule> result;
  const std::size_t actions =
      3 * static_cast<std::size_t>(problem.stages) * static_cast<std::size_t>(problem.microbatches);
  if (actions > kManyActions) {  // the few that win most often
    for (const double depth : {0.8, 1.0, 1.25, 2.2}) {
      for (const double patience : {0.0, 1.0})
        result.push_back({Preference::Backward, depth, problem.ranks, patience, true});
    }
    return result;
  }
  std::set<int> groups{1};
  if (problem.stages > problem.ranks) groups.insert({problem.ranks, problem.microbatches});
  for (const Preference prefer : {Preference::Backward, Preference::Alternate, Preference::Forward}) {
    for (const double depth : {0.6, 0.8, 1.0, 1.25, 1.6, 2.2, 1e9}) {
      for (const int group : groups) {
        for (const double patience : {0.0, 0.5, 1.0})
          result.push_back({prefer, depth, group, patience, true});
        result.push_back({prefer, depth, group, 0, false});
      }
    }
  }
  return result;
}

std::vector<schedule::Placement> placements(int ranks, int stages) {
  std::vector<schedule::Placement> result{
      schedule::Placement::make(ranks, stages, schedule::PlacementStyle::Loop)};
  if (stages > ranks && ranks > 1)
    result.push_back(schedule::Placement::make(ranks, stages, schedule::PlacementStyle::V));
  return result;
}

schedule::Schedule to_schedule(const Problem& problem, const Order& order) {
  return {"Auto", problem.placement, problem.microbatches, order};
}

//! Merges adjacent I and W into a B where that is cheaper. The step can still become slower, because a B
//! sends the gradient of its input later than an I.
Order merge_backwards(const Problem& problem, Order order) {
  for (schedule::ActionList& list : order) {
    schedule::ActionList merged;
    for (const schedule::Action& action : list) {
      const bool pair =
          action.kind() == schedule::ActionKind::BackwardWeight && !merged.empty() &&
          merged.back() == schedule::Action::backward_input(action.stage(), action.microbatch());
      const auto s = action.stage().index();
      if (pair && problem.backward[s] < problem.input[s] + problem.weight[s]) {
        merged.back() = schedule::Action::backward(action.stage(), action.microbatch());
      } else {
        merged.push_back(action);
      }
    }
    list = std::move(merged);
  }
  return order;
}

//! The simulated step time of a schedule, or infinity if it does not fit.
double time_of(const schedule::Schedule& schedule, const Costs& costs, const AutoOptions& options) {
  const schedule::Program program = make_program(schedule, options.send_mode);
  const Simulation result = simulate(program, costs, {.memory_samples = false, .critical_path = false});
  const bool fits_cap = !options.memory_cap || result.peak_memory() <= *options.memory_cap;
  return fits_cap ? result.step_time : std::numeric_limits<double>::infinity();
}

void try_named(AutoResult& result, int ranks, int microbatches, const Costs& costs,
               const AutoOptions& options) {
  const int stages = static_cast<int>(costs.stages.size());
  result.step_time = std::numeric_limits<double>::infinity();
  for (const schedule::ScheduleInfo& info : schedule::schedule_infos()) {
    if (!info.has_backward) continue;
    const schedule::ScheduleShape shape{ranks, stages / ranks, microbatches};
    if (info.only_stages_per_rank && *info.only_stages_per_rank != shape.stages_per_rank) continue;
    try {
      check_shape(info.kind, shape);
    } catch (const UsageError&) {
      continue;  // the schedule does not support these counts
    }
    schedule::Schedule schedule = make_schedule(info.kind, shape);
    const double time = time_of(schedule, costs, options);
    if (time >= result.step_time) continue;
    result.step_time = time;
    result.best_named = NamedTime{std::string(info.name), time};
    result.schedule = std::move(schedule);
  }
}

std::vector<Candidate> build_candidates(const std::vector<Problem>& problems) {
  std::vector<Candidate> candidates;
  Evaluation evaluation;
  for (std::size_t p = 0; p < problems.size(); ++p) {
    for (const Rule& rule : rules(problems[p])) {
      std::optional<Order> order = list_schedule(problems[p], rule);
      if (!order) continue;
      evaluate(problems[p], *order, evaluation);
      const auto same = [&](const Candidate& other) {
        return other.problem == p && other.makespan == evaluation.makespan;
      };
      if (std::any_of(candidates.begin(), candidates.end(), same)) continue;
      candidates.push_back({evaluation.makespan, p, std::move(*order)});
    }
  }
  std::sort(candidates.begin(), candidates.end(),
            [](const auto& a, const auto& b) { return a.makespan < b.makespan; });
  return candidates;
}

//! Starts the search from a named schedule too, unless it has overlaps, which the search does not support.
void add_named(std::vector<Candidate>& candidates, const std::vector<Problem>& problems,
               const schedule::Schedule& named, double time) {
  Order order;
  for (const schedule::ActionList& rank : named.ranks) {
    auto& list = order.emplace_back();
    for (const schedule::Action& action : rank) {
      if (action.kind() == schedule::ActionKind::Overlap) return;
      if (!action.is_idle()) list.push_back(action);
    }
  }
  for (std::size_t p = 0; p < problems.size(); ++p) {
    if (problems[p].placement != named.placement) continue;
    candidates.insert(candidates.begin(), {time, p, std::move(order)});
    return;
  }
}

}  // namespace

AutoResult make_auto_schedule(int ranks, int microbatches, const Costs& costs, const AutoOptions& options) {
  const int stages = static_cast<int>(costs.stages.size());
  if (ranks < 1 || microbatches < 1) throw UsageError("Auto needs at least one rank and one microbatch");
  if (stages < ranks || stages % ranks != 0) {
    throw UsageError(str_cat("Auto cannot distribute ", stages, " stages over ", ranks, " ranks"), {},
                     "use a number of stages that is a multiple of the number of ranks");
  }
  check_costs(costs, stages, microbatches);
  AutoResult result;
  try_named(result, ranks, microbatches, costs, options);

  const std::vector<schedule::Placement> where = placements(ranks, stages);
  std::vector<Problem> problems;
  result.lower_bound = std::numeric_limits<double>::infinity();
  for (const schedule::Placement& placement : where) {
    problems.emplace_back(placement, microbatches, costs, options.memory_cap);
    result.lower_bound = std::min(result.lower_bound, lower_bound(placement, microbatches, costs));
  }
  const auto reached = [&] {
    return result.step_time <= result.lower_bound * (1 + 1e-9);
  };  // no schedule can be faster
  std::vector<Candidate> candidates;
  if (!reached()) candidates = build_candidates(problems);
  if (candidates.size() > kStarts) candidates.resize(kStarts);
  if (result.best_named) add_named(candidates, problems, result.schedule, result.best_named->step_time);

  const std::size_t actions = 3 * static_cast<std::size_t>(stages) * static_cast<std::size_t>(microbatches);
  const int budget = static_cast<int>(static_cast<std::size_t>(options.effort) * kEvaluationsTimesActions /
                                      actions / kStarts);
  for (Candidate& candidate : candidates) {
    const Problem& problem = problems[candidate.problem];
    if (reached()) break;
    improve(problem, candidate.order, budget);
    const auto consider = [&](const Order& order) {
      schedule::Schedule schedule = to_schedule(problem, order);
      const double time = time_of(schedule, costs, options);
      if (time >= result.step_time) return;
      result.step_time = time;
      result.schedule = std::move(schedule);
    };
    const Order merged = merge_backwards(problem, candidate.order);
    consider(merged);
    if (merged != candidate.order) consider(candidate.order);
  }
  if (result.schedule.ranks.empty()) {
    throw ScheduleError(
        "no schedule fits" + (options.memory_cap ? " into " + format_bytes(*options.memory_cap) : ""), {},
        "raise the memory cap, use more ranks, or recompute activations");
  }
  result.schedule.name = "Auto";
  return result;
}

}  // namespace penstock::plan
