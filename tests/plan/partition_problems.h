// Random models to partition for a schedule, their partitions, and a local search over these.
#pragma once

#include <penstock/base/error.h>
#include <penstock/plan/planner.h>
#include <penstock/schedule/generate.h>
#include <penstock/schedule/lower.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>

namespace penstock::test {

using Boundaries = std::vector<int>;  // the first layer of each stage, then the number of layers

struct Problem {
  std::vector<plan::Layer> layers;
  plan::Costs links;
  schedule::ScheduleKind kind = schedule::ScheduleKind::OneFOneB;
  schedule::ScheduleShape shape;
  plan::PlanOptions options;

  schedule::Program program() const { return make_program(make_schedule(kind, shape), options.send_mode); }
  plan::Plan plan() const { return plan_layers(layers, links, options).plans.front(); }
};

inline plan::Layer layer(double time) {
  return {"", {.forward = time, .input = time, .weight = time}};
}

inline std::optional<Problem> random_problem(std::mt19937& random, int most_ranks, int spare_layers) {
  const auto pick = [&](int least, int most) {
    return least + static_cast<int>(random() % static_cast<unsigned>(most - least + 1));
  };
  const auto infos = schedule::schedule_infos();
  const schedule::ScheduleInfo& info = infos[random() % infos.size()];
  if (!info.has_backward) return std::nullopt;
  Problem problem;
  problem.kind = info.kind;
  const int ranks = pick(2, most_ranks);
  problem.shape = {ranks, info.only_stages_per_rank.value_or(pick(1, 2)), ranks * pick(1, 3)};
  try {
    check_shape(info.kind, problem.shape);
  } catch (const UsageError&) {
    return std::nullopt;
  }
  const int count = problem.shape.num_stages() + pick(0, spare_layers);
  const bool chores = random() % 4 == 0;
  for (int i = 0; i < count; ++i) {
    plan::Layer one = layer(pick(1, 20));
    one.costs.weight = pick(0, 20);
    if (random() % 3 == 0) one.costs.backward = one.costs.input + 1;
    if (chores) one.costs.unshard = pick(0, 3), one.costs.reduce_grad = pick(0, 5);
    one.costs.activation_bytes = static_cast<std::uint64_t>(pick(1, 20));
    one.costs.weight_bytes = static_cast<std::uint64_t>(pick(0, 5));
    one.costs.parameter_bytes = static_cast<std::uint64_t>(pick(0, 50));
    one.costs.output_bytes = static_cast<std::uint64_t>(pick(0, 9));
    if (count % 5 == 0) one.costs.recompute = true, one.costs.input_bytes = 3;
    problem.layers.push_back(one);
  }
  problem.links.link = {static_cast<double>(pick(0, 3)), static_cast<double>(pick(1, 9))};
  problem.links.overlap = pick(0, 2) / 2.0;
  problem.options = {.ranks = ranks,
                     .microbatches = {problem.shape.microbatches},
                     .stages_per_rank = {problem.shape.stages_per_rank},
                     .schedules = {info.kind},
                     .recomputation = false,
                     .send_mode = schedule::kSendModes[random() % schedule::kSendModes.size()]};
  if (random() % 3 == 0) problem.options.memory_cap = static_cast<std::uint64_t>(pick(100, 500));
  return problem;
}

//! Bytes above the cap, then time.
using Score = std::pair<std::uint64_t, double>;

inline Score score(const Problem& problem, const schedule::Program& program, const Boundaries& boundaries) {
  plan::Costs costs = problem.links;
  for (std::size_t s = 0; s + 1 < boundaries.size(); ++s) {
    const auto from = static_cast<std::size_t>(boundaries[s]),
               to = static_cast<std::size_t>(boundaries[s + 1]);
    costs.stages.push_back(merge_layers(std::span(problem.layers).subspan(from, to - from)));
  }
  const plan::Simulation result = simulate(program, costs, {.memory_samples = false, .critical_path = false});
  const std::uint64_t cap = problem.options.memory_cap.value_or(UINT64_MAX);
  return {result.peak_memory() > cap ? result.peak_memory() - cap : 0, result.step_time};
}

inline void for_each_partition(int layers, int stages, Boundaries& boundaries,
                               const std::function<void(const Boundaries&)>& visit) {
  const int chosen = static_cast<int>(boundaries.size());
  if (chosen == stages) {
    boundaries.push_back(layers);
    visit(boundaries);
    boundaries.pop_back();
    return;
  }
  for (int next = boundaries.back() + 1; next <= layers - (stages - chosen); ++next) {
    boundaries.push_back(next);
    for_each_partition(layers, stages, boundaries, visit);
    boundaries.pop_back();
  }
}

//! Moves one boundary by one layer while that shortens the step.
inline Score local_search(const Problem& problem, const schedule::Program& program, Boundaries boundaries) {
  Score best = score(problem, program, boundaries);
  for (bool moved = true; moved;) {
    moved = false;
    const Boundaries from = boundaries;
    for (std::size_t b = 1; b + 1 < from.size(); ++b) {
      for (const int step : {-1, 1}) {
        Boundaries trial = from;
        trial[b] += step;
        if (trial[b] <= trial[b - 1] || trial[b] >= trial[b + 1]) continue;
        const Score found = score(problem, program, trial);
        if (found < best) best = found, boundaries = trial, moved = true;
      }
    }
  }
  return best;
}

//! Plans random models and compares each plan with local searches from three partitions.
inline void expect_no_worse_than_local_search(unsigned first_seed, unsigned last_seed) {
  unsigned compared = 0;
  for (unsigned seed = first_seed; seed < last_seed; ++seed) {
    std::mt19937 random(seed);
    auto problem = random_problem(random, 6, 16);
    if (!problem) continue;
    problem->options.memory_cap.reset();
    problem->options.send_mode = schedule::SendMode::Buffered;
    const schedule::Program program = problem->program();
    const int layers = static_cast<int>(problem->layers.size()), stages = problem->shape.num_stages();
    const Score found = score(*problem, program, problem->plan().first_layer);
    for (int start = 0; start < 3; ++start) {  // one even partition, and two random ones
      Boundaries boundaries;
      for (int s = 0; s <= stages; ++s) boundaries.push_back(s * layers / stages);
      for (std::size_t b = 1; start > 0 && b + 1 < boundaries.size(); ++b) {
        const int low = boundaries[b - 1] + 1, high = boundaries[b + 1] - 1;
        boundaries[b] = low + static_cast<int>(random() % static_cast<unsigned>(high - low + 1));
      }
      const Score other = local_search(*problem, program, boundaries);
      EXPECT_LE(found.second, other.second * (1 + 1e-9))
          << "seed " << seed << " start " << start << " " << to_string(problem->options.schedules[0]);
    }
    ++compared;
  }
  EXPECT_GT(compared, (last_seed - first_seed) / 2);
}

}  // namespace penstock::test
