// The simulator compared with the closed formulas of the papers over sweeps, and with a naive relaxation that
// shares no code with its engine.
#include "support/error_message.h"

#include <penstock/base/error.h>
#include <penstock/plan/simulate.h>
#include <penstock/schedule/generate.h>
#include <penstock/schedule/lower.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <random>
#include <tuple>

namespace penstock::plan {
namespace {

constexpr StageCosts kEqualCosts{
    .forward = 1, .input = 1, .weight = 1, .activation_bytes = 1, .weight_bytes = 0};

Simulation run(schedule::ScheduleKind kind, int ranks, int stages_per_rank, int microbatches,
               const StageCosts& each = kEqualCosts, double overlap = 0) {
  const schedule::ScheduleShape shape{ranks, stages_per_rank, microbatches};
  Costs costs = Costs::uniform(shape.num_stages(), each);
  costs.overlap = overlap;
  return simulate(make_program(make_schedule(kind, shape), schedule::SendMode::Buffered), costs);
}

std::string name(int p, int v, int m) {
  return "p=" + std::to_string(p) + " v=" + std::to_string(v) + " m=" + std::to_string(m);
}

TEST(PlanSimulateFormula, OneFOneBAndGPipeIdleForRanksMinusOneMicrobatches) {
  for (int p = 1; p <= 12; ++p) {
    for (int m = 1; m <= 40; m += 3) {
      for (const auto& each : {kEqualCosts, StageCosts{.forward = 2, .input = 1.5, .weight = 0.75}}) {
        for (const schedule::ScheduleKind kind :
             {schedule::ScheduleKind::OneFOneB, schedule::ScheduleKind::GPipe}) {
          const Simulation result = run(kind, p, 1, m, each);
          const double whole = each.forward + each.input + each.weight;
          EXPECT_NEAR(result.step_time, (m + p - 1) * whole, 1e-9) << name(p, 1, m);
          EXPECT_NEAR(result.bubble, (p - 1.0) / (m + p - 1), 1e-9) << name(p, 1, m);
        }
      }
    }
  }
}

TEST(PlanSimulateFormula, InterleavingDividesBubbleByStagesPerRank) {
  for (int p = 2; p <= 8; ++p) {
    for (int v = 1; v <= 4; ++v) {
      for (int m = p; m <= 4 * p + 1; ++m) {
        const Simulation result = run(schedule::ScheduleKind::Interleaved1F1B, p, v, m);
        // In units of one microbatch of a rank, 3v: the bubble is (p-1)/v of these.
        EXPECT_NEAR(result.step_time, 3.0 * v * m + 3.0 * (p - 1), 1e-9) << name(p, v, m);
        EXPECT_NEAR(result.bubble, (p - 1.0) / (v * m + p - 1), 1e-9) << name(p, v, m);
      }
    }
  }
}

// The papers' (p-1)(F+I-W) and (p-1)(F+I-2W), at equal costs one third of 1F1B's bubble and none, ignore that
// the last rank cannot start before p-1 forward passes: no schedule idles less than (p-1)F within the step.
TEST(PlanSimulateFormula, Zb1pAndZb2pMatchPaperButNeverIdleLessThanFill) {
  for (int p = 2; p <= 10; ++p) {
    for (int m = 2 * p; m <= 4 * p; m += 3) {
      for (const auto& [f, i, w] : {std::array{1.0, 1.0, 1.0},
                                    {2.0, 2.0, 1.0},
                                    {1.0, 2.0, 1.0},
                                    {2.0, 1.0, 1.0},
                                    {3.0, 3.0, 2.0},
                                    {2.0, 2.0, 3.0}}) {
        const StageCosts each{.forward = f, .input = i, .weight = w};
        const double one = run(schedule::ScheduleKind::ZB1P, p, 1, m, each).step_time - m * (f + i + w);
        const double two = run(schedule::ScheduleKind::ZB2P, p, 1, m, each).step_time - m * (f + i + w);
        EXPECT_NEAR(one, (p - 1) * std::max(f, f + i - w), 1e-9)
            << name(p, 1, m) << " F=" << f << " I=" << i << " W=" << w;
        EXPECT_NEAR(two, (p - 1) * std::max(f, f + i - 2 * w), 1e-9)
            << name(p, 1, m) << " F=" << f << " I=" << i << " W=" << w;
      }
      EXPECT_NEAR(run(schedule::ScheduleKind::ZB2P, p, 1, m).own_bubble, 0, 1e-9) << name(p, 1, m);
    }
  }
}

TEST(PlanSimulateFormula, ZbvHasNoBubbleWithinRankSpan) {
  for (int p = 1; p <= 10; ++p) {
    for (int m = 2 * p; m <= 5 * p; ++m) {
      const Simulation result = run(schedule::ScheduleKind::ZBVZeroBubble, p, 2, m);
      EXPECT_NEAR(result.own_bubble, 0, 1e-9) << name(p, 2, m);
      EXPECT_NEAR(result.step_time, 6.0 * m + (p - 1), 1e-9) << name(p, 2, m);
    }
  }
}

// The most idle rank of DualPipeV has (p-1)(F&B + B - 3W), where F&B is an overlapped pair. The formula
// assumes I = F; if I is longer than F, the simulation finds less, because the longer I leaves room for the W
// actions (docs/simulation.md).
TEST(PlanSimulateFormula, DualPipeVMatchesPaper) {
  for (int p = 1; p <= 10; ++p) {
    for (const int m : {2 * p, 3 * p, 4 * p + 1}) {
      for (const double overlap : {0.0, 0.25, 0.5, 1.0}) {
        for (const double forward : {1.0, 2.0}) {
          for (const double input : {1.0, 2.0, 3.0}) {
            if (input < forward) continue;
            const StageCosts each{.forward = forward, .input = input, .weight = 1};
            const Simulation result = run(schedule::ScheduleKind::DualPipeV, p, 2, m, each, overlap);
            const double both = each.forward + each.full_backward() - overlap * each.forward;
            const double formula = (p - 1) * (both + each.full_backward() - 3 * each.weight);
            double idle = 0;
            for (const RankReport& rank : result.ranks) idle = std::max(idle, result.step_time - rank.busy);
            if (input == forward) {
              EXPECT_NEAR(idle, formula, 1e-9) << name(p, 2, m) << " F=" << forward << " overlap " << overlap;
            } else {
              EXPECT_LE(idle, formula + 1e-9) << name(p, 2, m) << " F=" << forward << " I=" << input;
            }
          }
        }
      }
    }
  }
}

TEST(PlanSimulateFormula, InFlightMicrobatchesOf1F1BEqualDistanceFromLastStage) {
  for (int p = 1; p <= 10; ++p) {
    for (const int m : {1, p, 3 * p}) {
      const Simulation result = run(schedule::ScheduleKind::OneFOneB, p, 1, m);
      for (int r = 0; r < p; ++r) {
        EXPECT_EQ(result.ranks[r].peak_memory, static_cast<std::uint64_t>(std::min(m, p - r)))
            << name(p, 1, m);
      }
    }
  }
}

TEST(PlanSimulateFormula, ControllableMemorySchedulesMatchTheirShare) {
  for (int p = 2; p <= 12; ++p) {
    const int m = 4 * p;
    // A stage is half of a rank, so two bytes make one microbatch of 1F1B.
    const double half = static_cast<double>(run(schedule::ScheduleKind::VHalf, p, 2, m).peak_memory()) / 2;
    const double least = static_cast<double>(run(schedule::ScheduleKind::VMin, p, 2, m).peak_memory()) / 2;
    EXPECT_LE(half, (p + 2) / 2.0 + 0.5) << name(p, 2, m);
    EXPECT_LE(least, (p + 4) / 3.0 + 0.5) << name(p, 2, m);
    EXPECT_GE(half, p / 2.0) << name(p, 2, m);
    EXPECT_GE(least, p / 3.0) << name(p, 2, m);
  }
}

//! How long an action occupies its rank, computed only from the fields of the costs.
double plain_duration(const schedule::Action& action, const Costs& costs) {
  const StageCosts& stage = costs.stages[action.stage().index()];
  const double again = stage.recompute ? stage.forward : 0;
  const double whole = stage.backward ? *stage.backward : stage.input + stage.weight;
  switch (action.kind()) {
    case schedule::ActionKind::Forward:
      return stage.forward;
    case schedule::ActionKind::Backward:
      return again + whole;
    case schedule::ActionKind::BackwardInput:
      return again + stage.input;
    case schedule::ActionKind::BackwardWeight:
      return stage.weight;
    case schedule::ActionKind::Overlap: {
      const double first = plain_duration(action.forward_part(), costs);
      const double second = plain_duration(action.backward_part(), costs);
      return first + second - costs.overlap * (first < second ? first : second);
    }
    case schedule::ActionKind::Unshard:
      return stage.unshard;
    case schedule::ActionKind::Reshard:
      return stage.reshard;
    case schedule::ActionKind::ReduceGrad:
      return stage.reduce_grad;
    default:
      return 0;
  }
}

//! The link of an ordered pair of ranks, and the bytes of one message between two stages.
Link plain_link(const Costs& costs, int from, int to) {
  for (const auto& [pair, link] : costs.links) {
    if (pair.first.value == from && pair.second.value == to) return link;
  }
  return costs.link;
}
double plain_bytes(const Costs& costs, int a, int b) {
  const int from = a < b ? a : b, to = a < b ? b : a;
  for (const auto& [edge, bytes] : costs.skip_bytes) {
    if (edge.first.value == from && edge.second.value == to) return static_cast<double>(bytes);
  }
  return static_cast<double>(costs.stages[static_cast<std::size_t>(from)].output_bytes);
}

// The oracle of the engine: the same rules, implemented naively and iterated to a fixed point.
struct Naive {
  const schedule::Program& program;
  const Costs& costs;
  std::map<std::pair<int, std::size_t>, std::pair<double, double>> times;  // rank, step -> start, end

  double end_of(int rank, const schedule::Action& action) const {
    const auto& list = program.of(Rank(rank));
    const auto found = std::find(list.begin(), list.end(), action);
    EXPECT_NE(found, list.end()) << to_string(action);
    return times.at({rank, static_cast<std::size_t>(found - list.begin())}).second;
  }
  int rank_of(StageId stage) const { return program.placement().rank_of(stage).value; }
  static schedule::Action partner(const schedule::Action& a) {
    switch (a.kind()) {
      case schedule::ActionKind::SendForward:
        return schedule::Action::recv_forward(a.peer(), a.microbatch(), a.stage());
      case schedule::ActionKind::RecvForward:
        return schedule::Action::send_forward(a.peer(), a.microbatch(), a.stage());
      case schedule::ActionKind::SendBackward:
        return schedule::Action::recv_backward(a.peer(), a.microbatch(), a.stage());
      default:
        return schedule::Action::send_backward(a.peer(), a.microbatch(), a.stage());
    }
  }

  //! When the message of `recv` has arrived; sends store [start, end] of their transfer.
  double arrival(const schedule::Action& recv) const { return end_of(rank_of(recv.peer()), partner(recv)); }

  double inputs_at(int rank, const schedule::Action& part) const {
    double at = 0;
    const schedule::Wiring& wiring = program.wiring();
    if (part.kind() == schedule::ActionKind::Forward) {
      for (const int e : wiring.into(part.stage())) {
        const StageId from = wiring.edge(e).from;
        if (rank_of(from) != rank)
          at = std::max(at, arrival(schedule::Action::recv_forward(part.stage(), part.microbatch(), from)));
      }
    } else if (part.kind() == schedule::ActionKind::Backward ||
               part.kind() == schedule::ActionKind::BackwardInput) {
      for (const int e : wiring.out_of(part.stage())) {
        const StageId to = wiring.edge(e).to;
        if (rank_of(to) != rank)
          at = std::max(at, arrival(schedule::Action::recv_backward(part.stage(), part.microbatch(), to)));
      }
    }
    return at;
  }

  bool relax() {
    bool moved = false;
    for (int r = 0; r < program.ranks(); ++r) {
      double clock = 0;
      std::map<int, double> link_free;  // by the other rank; buffered: outgoing only
      double gathered_until = 0;
      std::map<int, double> unsharded;
      const auto& list = program.of(Rank(r));
      for (std::size_t i = 0; i < list.size(); ++i) {
        const schedule::Action& a = list[i];
        double start = clock, end = clock;
        if (a.is_compute()) {
          for_each_part(a, [&](const schedule::Action& part) {
            start = std::max({start, inputs_at(r, part), unsharded[part.stage().value]});
          });
          end = clock = start + plain_duration(a, costs);
        } else if (a.is_transfer()) {
          const int other = rank_of(a.peer());
          const int from = a.is_send() ? r : other, to = a.is_send() ? other : r;
          const Link link = plain_link(costs, from, to);
          const double takes =
              link.latency + plain_bytes(costs, a.stage().value, a.peer().value) / link.bandwidth;
          const auto& theirs = program.of(Rank(other));
          const auto step =
              static_cast<std::size_t>(std::find(theirs.begin(), theirs.end(), partner(a)) - theirs.begin());
          const double posted_there = posted.at({other, step});
          posted[{r, i}] = clock;
          switch (program.send_mode()) {
            case schedule::SendMode::Buffered:
              if (a.is_send()) {
                start = std::max(clock, link_free[other]);
                end = start + takes;
                link_free[other] = end - link.latency;
              } else {
                start = std::max(clock, times.at({other, step}).first);
                end = std::max(clock, arrival(a));
              }
              break;
            case schedule::SendMode::Ordered:
              start = std::max({clock, posted_there, link_free[other]});
              end = link_free[other] = start + takes;
              break;
            case schedule::SendMode::Blocking:
              start = std::max(clock, posted_there);
              end = start + takes;
              if (a.is_send()) clock = end;
              break;
          }
        } else if (a.kind() == schedule::ActionKind::Reshard) {
          end = clock = start + plain_duration(a, costs);
        } else {
          start = std::max(clock, gathered_until);
          end = gathered_until = start + plain_duration(a, costs);
          if (a.kind() == schedule::ActionKind::Unshard) unsharded[a.stage().value] = end;
        }
        auto& entry = times[{r, i}];
        if (entry != std::pair(start, end)) moved = true;
        entry = {start, end};
      }
    }
    return moved;
  }
  std::map<std::pair<int, std::size_t>, double> posted;

  double makespan() {
    for (int r = 0; r < program.ranks(); ++r) {
      for (std::size_t i = 0; i < program.of(Rank(r)).size(); ++i) times[{r, i}] = {0, 0}, posted[{r, i}] = 0;
    }
    int rounds = 0;
    while (relax()) {
      if (++rounds > 5000) {
        ADD_FAILURE() << "the oracle does not settle";
        break;
      }
    }
    double end = 0;
    for (const auto& [location, time] : times) end = std::max(end, time.second);
    return end;
  }
};

Costs random_costs(std::mt19937& random, int stages, int ranks) {
  const auto pick = [&](int most) { return static_cast<double>(random() % static_cast<unsigned>(most + 1)); };
  Costs costs;
  for (int s = 0; s < stages; ++s) {
    StageCosts stage{.forward = 1 + pick(5), .input = 1 + pick(5), .weight = pick(5)};
    if (random() % 3 == 0) stage.backward = stage.input + stage.weight - pick(1);
    stage.unshard = pick(2);
    stage.reshard = pick(1);
    stage.reduce_grad = pick(3);
    stage.output_bytes = static_cast<std::uint64_t>(pick(4));
    stage.recompute = random() % 4 == 0;
    costs.stages.push_back(stage);
  }
  // Powers of two, so that times are exact.
  costs.link = {pick(2), std::exp2(pick(2))};
  for (int i = 0; i < ranks; ++i) {
    costs.links[{Rank(static_cast<int>(random() % static_cast<unsigned>(ranks))), Rank(i)}] = {
        pick(3), std::exp2(pick(1))};
  }
  costs.overlap = pick(4) / 4;
  return costs;
}

//! The same costs in another unit of time.
Costs scaled(Costs costs, double unit) {
  for (StageCosts& stage : costs.stages) {
    for (double* time :
         {&stage.forward, &stage.input, &stage.weight, &stage.unshard, &stage.reshard, &stage.reduce_grad})
      *time *= unit;
    if (stage.backward) *stage.backward *= unit;
  }
  costs.link = {costs.link.latency * unit, costs.link.bandwidth / unit};
  for (auto& [pair, link] : costs.links) link = {link.latency * unit, link.bandwidth / unit};
  return costs;
}

//! A random program of any schedule, send mode and options of lowering; nullopt for an illegal shape.
std::optional<schedule::Program> random_program(std::mt19937& random) {
  const auto infos = schedule::schedule_infos();
  const schedule::ScheduleInfo& info = infos[random() % infos.size()];
  const int ranks = 1 + static_cast<int>(random() % 4);
  const int v = info.only_stages_per_rank.value_or(1 + static_cast<int>(random() % 3));
  const schedule::ScheduleShape shape{ranks, v, ranks * (1 + static_cast<int>(random() % 3))};
  const schedule::SendMode mode = schedule::kSendModes[random() % schedule::kSendModes.size()];
  schedule::LowerOptions options{.shard = random() % 4 != 0,
                                 .max_active_stages = 1 + static_cast<int>(random() % 3)};
  if (shape.num_stages() > 3 && random() % 3 == 0)
    options.skips = {{StageId(0), StageId(shape.num_stages() - 1)}};
  try {
    return make_program(make_schedule(info.kind, shape), mode, options);
  } catch (const UsageError&) {
    return std::nullopt;
  }
}

Costs random_costs(std::mt19937& random, const schedule::Program& program) {
  Costs costs = random_costs(random, program.num_stages(), program.ranks());
  if (!program.wiring().skips().empty())
    costs.skip_bytes[{StageId(0), StageId(program.num_stages() - 1)}] = 3;
  return random() % 2 == 0 ? scaled(costs, 0.125) : costs;  // exact, and many times are below 1
}

// Start and end of every action, and the order of the timeline: by start, then by position in the program.
TEST(PlanSimulate, MatchesNaiveRelaxationInEverySendMode) {
  int compared = 0;
  for (unsigned seed = 0; seed < 400; ++seed) {
    std::mt19937 random(seed);
    const std::optional<schedule::Program> program = random_program(random);
    if (!program) continue;
    const Costs costs = random_costs(random, *program);
    const std::string which = "seed " + std::to_string(seed) + " " + program->name() + " " +
                              name(program->ranks(), program->num_stages(), program->microbatches()) + " " +
                              std::string(to_string(program->send_mode()));
    const Simulation result = simulate(*program, costs);
    Naive naive{*program, costs, {}, {}};
    EXPECT_NEAR(result.step_time, naive.makespan(), 1e-9) << which;
    for (int r = 0; r < program->ranks(); ++r) {
      std::vector<std::tuple<double, double, std::string>> expected, found;
      for (std::size_t i = 0; i < program->of(Rank(r)).size(); ++i) {
        const auto& [start, end] = naive.times.at({r, i});
        expected.emplace_back(start, end, to_string(program->of(Rank(r))[i]));
      }
      std::stable_sort(expected.begin(), expected.end(),
                       [](const auto& a, const auto& b) { return std::get<0>(a) < std::get<0>(b); });
      for (const auto& [action, start, end] : result.timeline.ranks[static_cast<std::size_t>(r)])
        found.emplace_back(start, end, to_string(action));
      EXPECT_EQ(found, expected) << which << " rank " << r;
    }
    ++compared;
  }
  EXPECT_GT(compared, 250);
}

TEST(PlanSimulate, CriticalPathIsContiguousFromStartToEnd) {
  int compared = 0;
  for (unsigned seed = 0; seed < 400; ++seed) {
    std::mt19937 random(seed);
    const std::optional<schedule::Program> program = random_program(random);
    if (!program) continue;
    const Simulation result = simulate(*program, random_costs(random, *program));
    ASSERT_FALSE(result.critical_path.empty());
    EXPECT_EQ(result.critical_path.front().timed.start, 0) << "seed " << seed;
    EXPECT_EQ(result.critical_path.back().timed.end, result.step_time) << "seed " << seed;
    for (std::size_t i = 0; i < result.critical_path.size(); ++i) {
      const auto& [rank, after] = result.critical_path[i];
      const schedule::ActionList& list = program->of(rank);
      EXPECT_NE(std::find(list.begin(), list.end(), after.action), list.end()) << "seed " << seed;
      if (i == 0) continue;
      const schedule::TimedAction& before = result.critical_path[i - 1].timed;
      // A busy link becomes free one latency before its message arrives.
      const bool transfer = before.action.is_transfer() && after.action.is_transfer();
      if (transfer) {
        EXPECT_LE(after.start, before.end) << "seed " << seed;
      } else {
        EXPECT_EQ(after.start, before.end) << "seed " << seed << " at " << to_string(after.action);
      }
    }
    ++compared;
  }
  EXPECT_GT(compared, 250);
}

TEST(PlanSimulate, NoScheduleBeatsLowerBound) {
  const auto infos = schedule::schedule_infos();
  for (unsigned seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    const schedule::ScheduleInfo& info = infos[random() % infos.size()];
    const int ranks = 1 + static_cast<int>(random() % 4);
    const int v = info.only_stages_per_rank.value_or(1 + static_cast<int>(random() % 2));
    const schedule::ScheduleShape shape{ranks, v, 2 * ranks};
    const Costs costs = random_costs(random, shape.num_stages(), ranks);
    const schedule::Program program =
        make_program(make_schedule(info.kind, shape), schedule::SendMode::Buffered);
    const Simulation result = simulate(program, costs);
    EXPECT_LE(lower_bound(program.placement(), shape.microbatches, costs, info.has_backward),
              result.step_time + 1e-9)
        << info.name << " seed " << seed;
  }
}

TEST(PlanSimulate, IdleSlotsOfProgramTakeNoTime) {
  const StageId s(0);
  const MicrobatchId m(0);
  schedule::Draft draft{"hand",
                        schedule::Placement::make(1, 1, schedule::PlacementStyle::Loop),
                        schedule::Wiring(1),
                        1,
                        {{schedule::Action(), schedule::Action::forward(s, m), schedule::Action(),
                          schedule::Action::backward(s, m)}}};
  const schedule::Program program = schedule::Program::validated(draft, schedule::SendMode::Buffered);
  const Simulation result = simulate(program, Costs::uniform(1));
  const auto& list = result.timeline.ranks[0];
  ASSERT_EQ(list.size(), 4u);
  EXPECT_TRUE(list[2].action.is_idle());
  EXPECT_EQ(list[2].start, 1);
  EXPECT_EQ(list[2].end, 1);
  EXPECT_EQ(result.step_time, 3);
}

TEST(PlanSimulate, RejectsMismatchedCosts) {
  const schedule::Program program =
      make_program(make_schedule(schedule::ScheduleKind::OneFOneB, {2, 1, 2}), schedule::SendMode::Buffered);
  EXPECT_ERROR(simulate(program, Costs::uniform(3)), UsageError,
               "the costs are for 3 stages, but the schedule has 2");
  Costs negative = Costs::uniform(2);
  negative.stages[1].forward = -1;
  EXPECT_ERROR(simulate(program, negative), UsageError, "stage 1: forward must be finite and not negative");
}

}  // namespace
}  // namespace penstock::plan
