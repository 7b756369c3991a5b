// Each stage processes its microbatches in order, so a rank has at most three candidates per stage: the next
// F, the next I (or B) and the next W. To avoid deadlock, a forward pass may only use memory that the oldest
// unfinished microbatch of the rank will not need, so the oldest one can always continue.
#include "plan/auto/list_schedule.h"

#include <algorithm>
#include <cmath>
#include <tuple>

namespace penstock::plan::auto_search {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr int kUnlimited = std::numeric_limits<int>::max();

class Builder {
 public:
  Builder(const Problem& problem, const Rule& rule) : p_(problem), rule_(rule) {
    const auto stages = static_cast<std::size_t>(p_.stages), ranks = static_cast<std::size_t>(p_.ranks);
    next_f_.assign(stages, 0);
    next_i_.assign(stages, 0);
    next_w_.assign(stages, 0);
    const std::size_t pairs = stages * static_cast<std::size_t>(p_.microbatches);
    input_at_.assign(pairs, kNever);
    gradient_at_.assign(pairs, kNever);
    for (int m = 0; m < p_.microbatches; ++m) input_at_[p_.at(0, m)] = 0;
    free_.assign(ranks, 0);
    held_.assign(ranks, 0);
    last_was_forward_.assign(ranks, false);
    link_free_.assign(static_cast<std::size_t>(p_.links), 0);
    order_.resize(ranks);
    find_limits();
  }

  std::optional<Order> build() {
    std::size_t left = static_cast<std::size_t>(p_.stages) * static_cast<std::size_t>(p_.microbatches) *
                       (rule_.split ? 3 : 2);
    std::vector<double> moment;  // per rank; changes only if the rank acts, waits or receives a value
    for (int r = 0; r < p_.ranks; ++r) moment.push_back(next_moment(r));
    while (left > 0) {
      // The rank that can act earliest decides first, so all values it could have received are known.
      const auto first = std::min_element(moment.begin(), moment.end());
      const double when = *first;
      if (when == kNever) return std::nullopt;
      const int rank = static_cast<int>(first - moment.begin());
      const Choice choice = choose(rank, when);
      if (choice.kind == schedule::ActionKind::Idle) {
        free_[idx(rank)] = choice.time;  // waits for a more urgent action
      } else {
        const int receiver = perform(rank, when, choice);
        if (receiver >= 0) moment[idx(receiver)] = next_moment(receiver);
        --left;
      }
      moment[idx(rank)] = next_moment(rank);
    }
    return order_;
  }

 private:
  struct Choice {
    schedule::ActionKind kind = schedule::ActionKind::Idle;
    int stage = 0;
    double time = 0;
  };

  //! Computes how many microbatches cover the round trip from a rank's first stage to the last stage.
  void find_limits() {
    double slowest = 0;
    for (const auto& stages : p_.stages_of) {
      double work = 0;
      for (const int s : stages) work += p_.forward[idx(s)] + p_.input[idx(s)] + p_.weight[idx(s)];
      slowest = std::max(slowest, work);
    }
    for (const auto& stages : p_.stages_of) {
      if (stages.empty()) {
        limit_.push_back(0);
        continue;
      }
      double round_trip = 0;
      for (int s = stages.front(); s < p_.stages; ++s) {
        round_trip += p_.forward[idx(s)] + (rule_.split ? p_.input[idx(s)] : p_.backward[idx(s)]);
        round_trip += p_.hop_up[idx(s)].transfer + (s > stages.front() ? p_.hop_down[idx(s)].transfer : 0);
      }
      const double count = std::ceil(rule_.depth * round_trip / slowest - 1e-9);  // not finite without work
      limit_.push_back(std::max(1, count < 1e9 ? static_cast<int>(count) : kUnlimited));
    }
  }

  static std::size_t idx(int i) { return static_cast<std::size_t>(i); }
  int batch_f(int s) const { return next_f_[idx(s)]; }
  int batch_i(int s) const { return next_i_[idx(s)]; }

  //! Whether the next F of the stage may allocate its memory now.
  bool admitted(int rank, int stage) const {
    const int m = batch_f(stage);
    const auto& stages = p_.stages_of[idx(rank)];
    if (stage == stages.front() && m - batch_i(stage) >= limit_[idx(rank)]) return false;
    // The oldest microbatch whose backward pass on this rank is not done.
    int oldest = p_.microbatches;
    for (const int s : stages) oldest = std::min(oldest, batch_i(s));
    std::int64_t promised = 0, peak = 0;
    for (const int s : stages) {
      const StageCosts& costs = p_.costs.stages[idx(s)];
      const auto full_bytes = static_cast<std::int64_t>(costs.activation_bytes + costs.weight_bytes);
      const bool to_come = batch_f(s) <= oldest && !(s == stage && m == oldest);
      if (to_come) promised += costs.recompute ? static_cast<std::int64_t>(costs.input_bytes) : full_bytes;
      if (costs.recompute) peak = std::max(peak, full_bytes);
    }
    const schedule::Action forward = schedule::Action::forward(StageId(stage), MicrobatchId(m));
    const std::int64_t now = p_.takes(forward), after = now - p_.gives(forward);
    if (m == oldest) return held_[idx(rank)] + std::max(now, after + peak) <= p_.room[idx(rank)];
    return held_[idx(rank)] + std::max(now, after + promised + peak) <= p_.room[idx(rank)];
  }

  double ready_f(int rank, int s) const {
    if (batch_f(s) >= p_.microbatches || !admitted(rank, s)) return kNever;
    return input_at_[p_.at(s, batch_f(s))];
  }
  double ready_i(int s) const {
    if (batch_i(s) >= batch_f(s)) return kNever;
    return gradient_at_[p_.at(s, batch_i(s))];
  }
  bool has_w(int s) const { return rule_.split && next_w_[idx(s)] < batch_i(s); }

  double next_moment(int rank) const {
    double earliest = kNever;
    for (const int s : p_.stages_of[idx(rank)]) {
      if (has_w(s)) return std::max(0.0, free_[idx(rank)]);
      earliest = std::min({earliest, ready_f(rank, s), ready_i(s)});
    }
    if (earliest == kNever) return kNever;
    return std::max(earliest, free_[idx(rank)]);
  }

  Choice choose(int rank, double now) const {
    Choice forward, backward, weight;
    std::tuple<int, int, int> best_f{}, best_i{};
    double urgent = kNever;  // the earliest time at which an F or I is ready
    const auto& stages = p_.stages_of[idx(rank)];
    for (std::size_t chunk = 0; chunk < stages.size(); ++chunk) {
      const int s = stages[chunk], position = static_cast<int>(chunk);
      const double f = ready_f(rank, s), i = ready_i(s);
      if (f <= now) {
        const std::tuple key{batch_f(s) / rule_.group, position, batch_f(s)};
        if (forward.kind == schedule::ActionKind::Idle || key < best_f)
          forward = {schedule::ActionKind::Forward, s, 0}, best_f = key;
      }
      if (i <= now) {
        const std::tuple key{batch_i(s) / rule_.group, -position, batch_i(s)};
        if (backward.kind == schedule::ActionKind::Idle || key < best_i)
          backward = {back_kind(), s, 0}, best_i = key;
      }
      if (has_w(s) && weight.kind == schedule::ActionKind::Idle)
        weight = {schedule::ActionKind::BackwardWeight, s, 0};
      if (f > now) urgent = std::min(urgent, f);
      if (i > now) urgent = std::min(urgent, i);
    }
    const bool any_f = forward.kind != schedule::ActionKind::Idle,
               any_i = backward.kind != schedule::ActionKind::Idle;
    if (any_f && any_i) {
      switch (rule_.prefer) {
        case Preference::Backward:
          return backward;
        case Preference::Forward:
          return forward;
        case Preference::Alternate:
          return last_was_forward_[idx(rank)] ? backward : forward;
      }
    }
    if (any_i) return backward;
    if (any_f) return forward;
    if (urgent < now + rule_.patience * p_.weight[idx(weight.stage)])
      return {schedule::ActionKind::Idle, 0, urgent};
    return weight;
  }

  schedule::ActionKind back_kind() const {
    return rule_.split ? schedule::ActionKind::BackwardInput : schedule::ActionKind::Backward;
  }

  //! Returns the rank that receives the result, or -1.
  int perform(int rank, double now, const Choice& choice) {
    const int s = choice.stage;
    schedule::Action action;
    int m = 0;
    if (choice.kind == schedule::ActionKind::Forward) {
      m = next_f_[idx(s)]++;
      action = schedule::Action::forward(StageId(s), MicrobatchId(m));
    } else if (choice.kind == schedule::ActionKind::BackwardWeight) {
      m = next_w_[idx(s)]++;
      action = schedule::Action::backward_weight(StageId(s), MicrobatchId(m));
    } else {
      m = next_i_[idx(s)]++;
      action = rule_.split ? schedule::Action::backward_input(StageId(s), MicrobatchId(m))
                           : schedule::Action::backward(StageId(s), MicrobatchId(m));
    }
    const double end = now + p_.duration(action);
    free_[idx(rank)] = end;
    held_[idx(rank)] += p_.takes(action) - p_.gives(action);
    order_[idx(rank)].push_back(action);
    if (choice.kind == schedule::ActionKind::BackwardWeight) return -1;
    const bool up = choice.kind == schedule::ActionKind::Forward;
    last_was_forward_[idx(rank)] = up;
    if (up && s + 1 == p_.stages) {
      gradient_at_[p_.at(s, m)] = end;
      return -1;
    }
    if (!up && s == 0) return -1;
    const int to = up ? s + 1 : s - 1;
    auto& there = up ? input_at_ : gradient_at_;
    there[p_.at(to, m)] = arrival(up ? p_.hop_up[idx(s)] : p_.hop_down[idx(s)], end);
    return p_.rank_of[idx(to)];
  }

  double arrival(const Problem::Hop& hop, double when) {
    if (hop.link < 0) return when;
    double& free = link_free_[idx(hop.link)];
    const double start = std::max(when, free);
    free = start + hop.occupies;
    return start + hop.transfer;
  }

  const Problem& p_;
  const Rule& rule_;
  std::vector<int> next_f_, next_i_, next_w_, limit_;
  std::vector<double> input_at_, gradient_at_, free_, link_free_;
  std::vector<std::int64_t> held_;
  std::vector<bool> last_was_forward_;
  Order order_;
};

}  // namespace

std::optional<Order> list_schedule(const Problem& problem, const Rule& rule) {
  return Builder(problem, rule).build();
}

}  // namespace penstock::plan::auto_search
