// First a local descent finds a good partition. Then branch and bound tries all partitions that a lower bound
// does not exclude, within a budget. If the budget does not suffice, descents from other starts follow.
#include "plan/partition_search.h"

#include "plan/auto/order.h"

#include <penstock/plan/simulate.h>

#include <algorithm>
#include <random>

namespace penstock::plan {
namespace {

constexpr std::size_t kSearchBudget = 4'000'000;       //!< in actions, about a tenth of a second
constexpr std::size_t kExhaustiveBudget = 10'000'000;  //!< the same, if it is enough to try every partition
constexpr std::size_t kSimulatedActionCost =
    6;                                   //!< cost of an action in the simulator; 1 in the quick evaluation
constexpr int kMaxSearchedStages = 512;  //!< above this, one round of moves exceeds the budget many times
constexpr double kSlack = 1e-12;         //!< relative tolerance for comparing times

//! The quality of a partition.
struct Score {
  std::uint64_t excess = 0;  //!< bytes of the fullest rank above the cap
  double time = std::numeric_limits<double>::infinity();

  bool better_than(const Score& other) const {
    return excess != other.excess ? excess < other.excess : time < other.time * (1 - kSlack);
  }
};

//! Whether the quick evaluation is exact: buffered sends, no overlaps, no skip edges, free sharding.
bool is_plain(std::span<const Layer> layers, const schedule::Program& program) {
  const auto free = [](const Layer& layer) {
    const StageCosts& costs = layer.costs;
    return costs.unshard == 0 && costs.reshard == 0 && costs.reduce_grad == 0 && costs.unsharded_bytes == 0;
  };
  const auto overlaps = [](const schedule::ActionList& list) {
    return std::any_of(list.begin(), list.end(), [](const schedule::Action& action) {
      return action.kind() == schedule::ActionKind::Overlap;
    });
  };
  const auto& lists = program.draft().ranks;
  return program.send_mode() == schedule::SendMode::Buffered &&
         program.wiring().edges() == program.num_stages() - 1 && program.has_backward() &&
         std::all_of(layers.begin(), layers.end(), free) &&
         std::none_of(lists.begin(), lists.end(), overlaps);
}

//! Computes step time and memory of a program for given costs, by the quick evaluation or the simulator.
class Evaluator {
 public:
  Evaluator(const schedule::Program& program, std::optional<std::uint64_t> cap, bool quick)
      : program_(program), cap_(cap), quick_(quick) {
    for (const schedule::ActionList& list : program.draft().ranks) {
      auto& computations = order_.emplace_back();
      for (const schedule::Action& action : list) {
        if (action.is_compute())
          for_each_part(action, [&](const schedule::Action& part) { computations.push_back(part); });
      }
      price_ += quick_ ? computations.size() : kSimulatedActionCost * list.size();
    }
  }

  //! The budget that one call uses.
  std::size_t price() const { return price_; }

  Score operator()(const Costs& costs) {
    if (!quick_) {
      const Simulation result = simulate(program_, costs, {.memory_samples = false, .critical_path = false});
      return {excess(result.peak_memory()), result.step_time};
    }
    const auto_search::Problem problem(program_.placement(), program_.microbatches(), costs, std::nullopt);
    auto_search::evaluate(problem, order_, evaluation_);
    Score score{0, evaluation_.makespan};
    if (!cap_) return score;
    for (int r = 0; r < program_.ranks(); ++r) {
      const auto rank = static_cast<std::size_t>(r);
      auto bytes = static_cast<std::uint64_t>(auto_search::peak_activations(problem, order_[rank]));
      for (const int s : problem.stages_of[rank])
        bytes += costs.stages[static_cast<std::size_t>(s)].resident_bytes();
      score.excess = std::max(score.excess, excess(bytes));
    }
    return score;
  }

 private:
  std::uint64_t excess(std::uint64_t bytes) const { return cap_ && bytes > *cap_ ? bytes - *cap_ : 0; }

  const schedule::Program& program_;
  std::optional<std::uint64_t> cap_;
  bool quick_;
  std::size_t price_ = 0;
  auto_search::Order order_;
  auto_search::Evaluation evaluation_;
};

//! Lower bounds of the times of a rank, given the stages chosen so far.
struct Load {
  double head = 0;              //!< before its first forward pass
  double tail = 0;              //!< after its last input gradient
  double busy = 0;              //!< all its computations
  double until_last_input = 0;  //!< without the weight gradients

  double bound() const { return head + std::max(busy, until_last_input + tail); }
};

class StepTimeSearch {
 public:
  StepTimeSearch(std::span<const Layer> layers, const schedule::Program& program, const Costs& links,
                 Evaluator evaluator)
      : layers_(layers), program_(program), costs_(links), evaluator_(std::move(evaluator)) {
    forward_.push_back(0), back_.push_back(0), work_.push_back(0), to_input_.push_back(0);
    for (const auto& [name, costs] : layers) {
      const double recompute_time = costs.recompute ? costs.forward : 0;
      const bool trains = program.has_backward();
      const double back = trains ? recompute_time + std::min(costs.input, costs.full_backward()) : 0;
      const double full_back =
          trains ? recompute_time + std::min(costs.input + costs.weight, costs.full_backward()) : 0;
      const double visible = (1 - links.overlap) * costs.forward;  // the part that an overlap cannot hide
      forward_.push_back(forward_.back() + costs.forward);
      back_.push_back(back_.back() + back);
      work_.push_back(work_.back() + visible + full_back);
      to_input_.push_back(to_input_.back() + visible + back);
    }
  }

  //! The result is never worse than the first start.
  PartitionResult run(const std::vector<std::vector<int>>& starts) {
    best_ = starts.front();
    best_score_ = score(best_);
    for (const std::vector<int>& start : starts) descend_from(start, kSearchBudget / 4);
    descend_from(even_partition(), kSearchBudget / 2);
    std::vector<int> first_layer(best_.size(), 0);
    std::vector<Load> loads(static_cast<std::size_t>(program_.ranks()));
    enumeration_ends_ = spent_ + (can_enumerate_all() ? kExhaustiveBudget : kSearchBudget / 4);
    const bool exact = enumerate(first_layer, 1, loads);
    if (!exact) restart();
    return {best_, exact};
  }

 private:
  int layers() const { return static_cast<int>(layers_.size()); }
  //! Boundary b >= 1 is the first layer of stage b.
  int boundaries() const { return program_.num_stages() - 1; }

  Score score(const std::vector<int>& first_layer) {
    costs_.stages = make_stages(layers_, first_layer);
    spent_ += evaluator_.price();
    return evaluator_(costs_);
  }

  //! Returns the score if the partition is better than `rival`. The lower bound decides most cases.
  std::optional<Score> beats(const std::vector<int>& first_layer, const Score& rival) {
    costs_.stages = make_stages(layers_, first_layer);
    spent_ += static_cast<std::size_t>(program_.num_stages());
    const double least =
        lower_bound(program_.placement(), program_.microbatches(), costs_, program_.has_backward());
    if (rival.excess == 0 && least >= rival.time * (1 - kSlack)) return std::nullopt;
    spent_ += evaluator_.price();
    const Score found = evaluator_(costs_);
    return found.better_than(rival) ? std::optional(found) : std::nullopt;
  }

  //! Whether the budget suffices to try all partitions, even if the bound excludes none.
  bool can_enumerate_all() const {
    double count = 1;
    for (int b = 1; b <= boundaries(); ++b) count *= static_cast<double>(layers() - b) / b;
    return count * static_cast<double>(evaluator_.price()) <= static_cast<double>(kExhaustiveBudget);
  }

  //! The same number of layers in each stage (up to rounding).
  std::vector<int> even_partition() const {
    std::vector<int> first_layer;
    for (int s = 0; s <= program_.num_stages(); ++s)
      first_layer.push_back(static_cast<int>(std::int64_t{s} * layers() / program_.num_stages()));
    return first_layer;
  }

  void descend_from(std::vector<int> first_layer, std::size_t until) {
    Score found = score(first_layer);
    descend(first_layer, found, until);
    if (found.better_than(best_score_)) best_ = std::move(first_layer), best_score_ = found;
  }

  //! Moves boundaries first..last by `step` layers. False if a stage would have no layer.
  static bool shift(std::vector<int>& first_layer, std::size_t first, std::size_t last, int step) {
    if (step < 0 ? first_layer[first] + step <= first_layer[first - 1]
                 : first_layer[last] + step >= first_layer[last + 1])
      return false;
    for (std::size_t b = first; b <= last; ++b) first_layer[b] += step;
    return true;
  }

  //! Repeatedly takes the best move of one boundary by one layer. If none improves, takes the first
  //! improvement that moves a boundary further, or several adjacent ones together.
  void descend(std::vector<int>& first_layer, Score& current, std::size_t until) {
    while (spent_ < until &&
           (take_steepest_move(first_layer, current) || take_far_move(first_layer, current, until))) {
    }
  }

  bool take_steepest_move(std::vector<int>& first_layer, Score& current) {
    std::vector<int> best;
    for (int b = 1; b <= boundaries(); ++b) {
      for (const int step : {-1, 1}) {
        std::vector<int> trial = first_layer;
        const auto at = static_cast<std::size_t>(b);
        if (!shift(trial, at, at, step)) continue;
        if (const auto found = beats(trial, current)) current = *found, best = std::move(trial);
      }
    }
    if (best.empty()) return false;
    first_layer = std::move(best);
    return true;
  }

  bool take_far_move(std::vector<int>& first_layer, Score& current, std::size_t until) {
    for (int width = 1; width <= boundaries(); ++width) {
      for (int b = 1; b + width - 1 <= boundaries(); ++b) {
        for (const int step : {-1, 1, -2, 2, -4, 4}) {
          if (spent_ >= until) return false;
          std::vector<int> trial = first_layer;
          const auto at = static_cast<std::size_t>(b);
          if (!shift(trial, at, at + static_cast<std::size_t>(width) - 1, step)) continue;
          const auto found = beats(trial, current);
          if (!found) continue;
          current = *found;
          first_layer = std::move(trial);
          return true;
        }
      }
    }
    return false;
  }

  //! Chooses the start of stage `stage`, then of the following stages. False if the budget ran out.
  bool enumerate(std::vector<int>& first_layer, int stage, std::vector<Load>& loads) {
    const auto s = static_cast<std::size_t>(stage);
    const int from = first_layer[s - 1];
    const bool last = stage == program_.num_stages();
    const int first = last ? layers() : from + 1,
              most = last ? layers() : layers() - (program_.num_stages() - stage);
    for (int to = first; to <= most; ++to) {
      if (++spent_ > enumeration_ends_) return false;
      Load& load = loads[program_.placement().rank_of(StageId(stage - 1)).index()];
      const Load before = load;
      add(load, from, to);
      const bool prunes = best_score_.excess == 0;
      const bool too_much = prunes && load.bound() >= best_score_.time * (1 - kSlack);
      bool finished = true;
      if (!too_much && !(prunes && rest_too_slow(to, stage))) {
        first_layer[s] = to;
        if (!last) {
          finished = enumerate(first_layer, stage + 1, loads);
        } else if (const auto found = beats(first_layer, best_score_)) {
          best_ = first_layer, best_score_ = *found;
        }
      }
      load = before;
      if (!finished) return false;
      if (too_much) break;  // more layers only take longer
    }
    return true;
  }

  void add(Load& load, int from, int to) const {
    const auto a = static_cast<std::size_t>(from), b = static_cast<std::size_t>(to);
    if (load.busy == 0) load.head = forward_[a], load.tail = back_[a];
    load.busy += program_.microbatches() * (work_[b] - work_[a]);
    load.until_last_input += program_.microbatches() * (to_input_[b] - to_input_[a]);
  }

  //! Whether the layers left for the following stages make every such partition too slow.
  bool rest_too_slow(int to, int stage) const {
    const int left = std::min(program_.num_stages() - stage, program_.ranks());
    const double rest = work_.back() - work_[static_cast<std::size_t>(to)];
    return left > 0 && program_.microbatches() * rest / left >= best_score_.time * (1 - kSlack);
  }

  //! Alternates between descents from random partitions and from perturbations of the best one.
  void restart() {
    std::mt19937 random(1);
    const auto pick = [&](int count) { return static_cast<int>(random() % static_cast<unsigned>(count)); };
    for (int round = 0; spent_ < kSearchBudget; ++round) {
      std::vector<int> first_layer = round % 2 == 0 ? even_partition() : best_;
      const int moves = round % 2 == 0 ? 2 * boundaries() : 1 + pick(3);
      for (int i = 0; i < moves; ++i) {
        const auto b = static_cast<std::size_t>(1 + pick(boundaries()));
        const int low = first_layer[b - 1] + 1, high = first_layer[b + 1] - 1;
        first_layer[b] = low + pick(high - low + 1);
      }
      descend_from(std::move(first_layer), kSearchBudget);
    }
  }

  std::span<const Layer> layers_;
  const schedule::Program& program_;
  Costs costs_;
  Evaluator evaluator_;
  std::vector<double> forward_, back_, work_, to_input_;  //!< prefix sums over the layers
  std::vector<int> best_;
  Score best_score_;
  std::size_t spent_ = 0, enumeration_ends_ = 0;
};

}  // namespace

PartitionResult search_partition(std::span<const Layer> layers, const schedule::Program& program,
                                 const Costs& links, std::optional<std::uint64_t> memory_cap,
                                 std::vector<int> start) {
  if (program.num_stages() > kMaxSearchedStages) return {std::move(start), false};
  std::vector<std::vector<int>> starts{std::move(start)};
  const bool plain = is_plain(layers, program);
  if (!plain) {  // the quick evaluation still finds a good start
    StepTimeSearch rough(layers, program, links, Evaluator(program, memory_cap, true));
    starts.push_back(rough.run(starts).first_layer);
  }
  return StepTimeSearch(layers, program, links, Evaluator(program, memory_cap, plain)).run(starts);
}

}  // namespace penstock::plan
