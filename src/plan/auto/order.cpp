// The quick evaluation: runs every rank as far as possible, as the simulator does, but on plain arrays.
#include "plan/auto/order.h"

#include <penstock/base/error.h>

#include <algorithm>
#include <map>

namespace penstock::plan::auto_search {

Problem::Problem(const schedule::Placement& stage_placement, int batches, const Costs& all,
                 std::optional<std::uint64_t> cap)
    : placement(stage_placement),
      ranks(stage_placement.ranks()),
      stages(stage_placement.num_stages()),
      microbatches(batches),
      costs(all) {
  stages_of.resize(static_cast<std::size_t>(ranks));
  room.assign(static_cast<std::size_t>(ranks), std::numeric_limits<std::int64_t>::max() / 4);
  if (cap) std::fill(room.begin(), room.end(), static_cast<std::int64_t>(*cap));
  for (int s = 0; s < stages; ++s) {
    const auto index = static_cast<std::size_t>(s);
    const StageCosts& stage = costs.stages[index];
    const double recompute_time = stage.recompute ? stage.forward : 0;
    rank_of.push_back(placement.rank_of(StageId(s)).value);
    stages_of[static_cast<std::size_t>(rank_of.back())].push_back(s);
    if (cap)
      room[static_cast<std::size_t>(rank_of.back())] -= static_cast<std::int64_t>(stage.resident_bytes());
    forward.push_back(stage.forward);
    input.push_back(recompute_time + stage.input);
    weight.push_back(stage.weight);
    backward.push_back(recompute_time + stage.full_backward());
  }
  std::map<std::pair<int, int>, int> numbers;
  const auto hop = [&](int from, int to) -> Hop {
    if (to < 0 || to >= stages ||
        rank_of[static_cast<std::size_t>(from)] == rank_of[static_cast<std::size_t>(to)])
      return {};
    const int a = rank_of[static_cast<std::size_t>(from)], b = rank_of[static_cast<std::size_t>(to)];
    const Link& link = costs.link_between(Rank(a), Rank(b));
    const double transfer = link.time(costs.message_bytes(StageId(from), StageId(to)));
    const int number = numbers.try_emplace({a, b}, static_cast<int>(numbers.size())).first->second;
    return {number, transfer, transfer - link.latency};
  };
  for (int s = 0; s < stages; ++s) {
    hop_up.push_back(hop(s, s + 1));
    hop_down.push_back(hop(s, s - 1));
  }
  links = static_cast<int>(numbers.size());
}

double Problem::duration(const schedule::Action& action) const {
  const auto s = action.stage().index();
  switch (action.kind()) {
    case schedule::ActionKind::Forward:
      return forward[s];
    case schedule::ActionKind::BackwardInput:
      return input[s];
    case schedule::ActionKind::BackwardWeight:
      return weight[s];
    case schedule::ActionKind::Backward:
      return backward[s];
    default:
      return 0;
  }
}

std::int64_t Problem::takes(const schedule::Action& action) const {
  const StageCosts& stage = costs.stages[action.stage().index()];
  const auto full_bytes = static_cast<std::int64_t>(stage.activation_bytes + stage.weight_bytes);
  if (action.kind() == schedule::ActionKind::Forward) return full_bytes;
  const bool back =
      action.kind() == schedule::ActionKind::Backward || action.kind() == schedule::ActionKind::BackwardInput;
  return back && stage.recompute ? full_bytes : 0;
}

std::int64_t Problem::gives(const schedule::Action& action) const {
  const StageCosts& stage = costs.stages[action.stage().index()];
  const auto kept = static_cast<std::int64_t>(stage.recompute ? stage.input_bytes : 0);
  const auto full_bytes = static_cast<std::int64_t>(stage.activation_bytes + stage.weight_bytes);
  switch (action.kind()) {
    case schedule::ActionKind::Forward:
      return stage.recompute ? full_bytes - kept : 0;
    case schedule::ActionKind::Backward:
      return full_bytes + kept;
    case schedule::ActionKind::BackwardInput:
      return static_cast<std::int64_t>(stage.activation_bytes) + kept;
    case schedule::ActionKind::BackwardWeight:
      return static_cast<std::int64_t>(stage.weight_bytes);
    default:
      return 0;
  }
}

std::int64_t peak_activations(const Problem& problem, const schedule::ActionList& list) {
  std::int64_t held = 0, peak = 0;
  for (const schedule::Action& action : list) {
    held += problem.takes(action);
    peak = std::max(peak, held);
    held -= problem.gives(action);
  }
  return peak;
}

bool fits(const Problem& problem, const schedule::ActionList& list, int rank) {
  return peak_activations(problem, list) <= problem.room[static_cast<std::size_t>(rank)];
}

namespace {

constexpr double kNotKnownYet = -1;

class Run {
 public:
  Run(const Problem& problem, const Order& order, Evaluation& result)
      : problem_(problem), order_(order), out_(result) {
    const auto ranks = static_cast<std::size_t>(problem.ranks);
    out_.offset.assign(ranks + 1, 0);
    for (std::size_t r = 0; r < ranks; ++r) out_.offset[r + 1] = out_.offset[r] + order[r].size();
    out_.start.assign(out_.offset.back(), 0);
    out_.end.assign(out_.offset.back(), 0);
    out_.bound_by.assign(out_.offset.back(), -1);
    const auto pairs =
        static_cast<std::size_t>(problem.stages) * static_cast<std::size_t>(problem.microbatches);
    value_.assign(3 * pairs, {kNotKnownYet, -1});  // arrival of the input, arrival of the gradient, end of I
    forward_done_.assign(pairs, false);
    step_.assign(ranks, 0);
    clock_.assign(ranks, 0);
    waits_.assign(ranks, kNowhere);
    link_free_.assign(static_cast<std::size_t>(problem.links), 0);
    for (int m = 0; m < problem.microbatches; ++m) value_[problem.at(0, m)].time = 0;
    pairs_ = pairs;
  }

  void go() {
    for (int r = problem_.ranks - 1; r >= 0; --r) ready_.push_back(r);
    while (!ready_.empty()) {
      const auto rank = static_cast<std::size_t>(ready_.back());
      ready_.pop_back();
      while (step_[rank] < order_[rank].size() && perform(rank)) ++step_[rank];
    }
    double makespan = 0;
    for (std::size_t r = 0; r < step_.size(); ++r) {
      if (step_[r] < order_[r].size()) {
        out_.makespan = std::numeric_limits<double>::infinity();
        return;
      }
      makespan = std::max(makespan, clock_[r]);
    }
    out_.makespan = makespan;
  }

 private:
  static constexpr std::size_t kNowhere = static_cast<std::size_t>(-1);
  struct Value {
    double time;
    std::int32_t by;
  };

  //! Runs the next action of the rank. False if a value is missing; `waits_` then has its index, or
  //! `kNowhere` if the order of the rank itself is invalid.
  bool perform(std::size_t rank) {
    const schedule::Action& action = order_[rank][step_[rank]];
    const int stage = action.stage().value;
    const std::size_t pair = problem_.at(stage, action.microbatch().value);
    std::size_t need = kNowhere;
    switch (action.kind()) {
      case schedule::ActionKind::Forward:
        need = pair;
        break;
      case schedule::ActionKind::Backward:
      case schedule::ActionKind::BackwardInput:
        if (!forward_done_[pair]) return false;
        need = pairs_ + pair;
        break;
      default:
        need = 2 * pairs_ + pair;
    }
    const Value& value = value_[need];
    if (value.time == kNotKnownYet) {
      waits_[rank] = need;
      return false;
    }
    const std::size_t entry = out_.offset[rank] + step_[rank];
    const bool waited = value.time > clock_[rank];
    const double start = waited ? value.time : clock_[rank];
    const double end = start + problem_.duration(action);
    out_.start[entry] = start;
    out_.end[entry] = end;
    out_.bound_by[entry] = waited ? value.by : step_[rank] > 0 ? static_cast<std::int32_t>(entry) - 1 : -1;
    clock_[rank] = end;
    finish(action, pair, end, static_cast<std::int32_t>(entry));
    return true;
  }

  void finish(const schedule::Action& action, std::size_t pair, double end, std::int32_t entry) {
    const int stage = action.stage().value;
    const auto s = static_cast<std::size_t>(stage);
    const auto count = static_cast<std::size_t>(problem_.microbatches);
    switch (action.kind()) {
      case schedule::ActionKind::Forward:
        forward_done_[pair] = true;
        if (stage + 1 < problem_.stages) {
          deliver(pair + count, problem_.hop_up[s], end, entry, stage + 1);
        } else {
          value_[pairs_ + pair] = {end, entry};  // the gradient of the loss is available immediately
        }
        return;
      case schedule::ActionKind::Backward:
      case schedule::ActionKind::BackwardInput:
        value_[2 * pairs_ + pair] = {end, entry};
        if (stage > 0) deliver(pairs_ + pair - count, problem_.hop_down[s], end, entry, stage - 1);
        return;
      default:
        return;
    }
  }

  void deliver(std::size_t key, const Problem::Hop& hop, double when, std::int32_t entry, int to_stage) {
    double arrival = when;
    if (hop.link >= 0) {
      double& free = link_free_[static_cast<std::size_t>(hop.link)];
      const double start = std::max(when, free);
      free = start + hop.occupies;
      arrival = start + hop.transfer;
    }
    value_[key] = {arrival, entry};
    const auto rank = static_cast<std::size_t>(problem_.rank_of[static_cast<std::size_t>(to_stage)]);
    if (waits_[rank] != key) return;
    waits_[rank] = kNowhere;
    ready_.push_back(static_cast<int>(rank));
  }

  const Problem& problem_;
  const Order& order_;
  Evaluation& out_;
  std::size_t pairs_ = 0;
  std::vector<Value> value_;
  std::vector<bool> forward_done_;
  std::vector<std::size_t> step_, waits_;
  std::vector<double> clock_, link_free_;
  std::vector<int> ready_;
};

}  // namespace

void evaluate(const Problem& problem, const Order& order, Evaluation& result) {
  Run(problem, order, result).go();
}

}  // namespace penstock::plan::auto_search
