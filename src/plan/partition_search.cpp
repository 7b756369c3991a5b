// First a local descent finds a good partition. Then branch and bound tries all partitions that a lower bound
// does not exclude, within a budget. If the budget does not suffice, descents from other starts follow.
#include "plan/partition_search.h"

#include "plan/auto/order.h"

#include <penstock/plan/simulate.h>

#include <algorithm>
#include <random>

namespace penstock::plan {
namespace {

constexpr std::size_t search_budget = 4'000'000;     //!< in actions, about a tenth of a second
constexpr std::size_t few_cuts_budget = 10'000'000;  //!< if all partitions of a small model can be tried
constexpr std::size_t slow_action = 6;  //!< cost of an action in the simulator; 1 in the quick evaluation
constexpr double slack = 1e-12;         //!< relative tolerance for comparing times

//! The quality of a partition.
struct Score {
  std::uint64_t excess = 0;  //!< bytes of the fullest rank above the cap
  double time = std::numeric_limits<double>::infinity();

  bool better_than(const Score& other) const {
    return excess != other.excess ? excess < other.excess : time < other.time * (1 - slack);
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
  return program.mode() == schedule::SendMode::Buffered && program.wiring().edges() == program.stages() - 1 &&
         program.has_backward() && std::all_of(layers.begin(), layers.end(), free) &&
         std::none_of(lists.begin(), lists.end(), overlaps);
}

//! Computes step time and memory of a program for given costs, by the quick evaluation or the simulator.
class Judge {
 public:
  Judge(const schedule::Program& program, std::optional<std::uint64_t> cap, bool quick)
      : program_(program), cap_(cap), quick_(quick) {
    for (const schedule::ActionList& list : program.draft().ranks) {
      auto& computations = order_.emplace_back();
      for (const schedule::Action& action : list) {
        if (action.is_compute())
          for_each_part(action, [&](const schedule::Action& part) { computations.push_back(part); });
      }
      price_ += quick_ ? computations.size() : slow_action * list.size();
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
  double head = 0;              //!< before its first forward
  double tail = 0;              //!< after its last input gradient
  double busy = 0;              //!< all its computations
  double until_last_input = 0;  //!< without the weight gradients

  double bound() const { return head + std::max(busy, until_last_input + tail); }
};

class Search {
 public:
  Search(std::span<const Layer> layers, const schedule::Program& program, const Costs& links, Judge judge)
      : layers_(layers), program_(program), costs_(links), judge_(std::move(judge)) {
    forward_.push_back(0), back_.push_back(0), work_.push_back(0), to_input_.push_back(0);
    for (const auto& [name, costs] : layers) {
      const double again = costs.recompute ? costs.forward : 0;
      const bool trains = program.has_backward();
      const double back = trains ? again + std::min(costs.input, costs.full_backward()) : 0;
      const double whole = trains ? again + std::min(costs.input + costs.weight, costs.full_backward()) : 0;
      const double visible = (1 - links.overlap) * costs.forward;  // the part that an overlap cannot hide
      forward_.push_back(forward_.back() + costs.forward);
      back_.push_back(back_.back() + back);
      work_.push_back(work_.back() + visible + whole);
      to_input_.push_back(to_input_.back() + visible + back);
    }
  }

  //! The result is never worse than the first start.
  CutSearch run(const std::vector<std::vector<int>>& starts) {
    best_ = starts.front();
    best_score_ = score(best_);
    if (program_.stages() == 1) return {best_, true};
    for (const std::vector<int>& start : starts) descend_from(start, search_budget / 4);
    descend_from(even_cut(), search_budget / 2);
    std::vector<int> cut(best_.size(), 0);
    std::vector<Load> loads(static_cast<std::size_t>(program_.ranks()));
    enumeration_ends_ = spent_ + (few_cuts() ? few_cuts_budget : search_budget / 4);
    const bool exact = enumerate(cut, 1, loads);
    if (!exact) restart();
    return {best_, exact};
  }

 private:
  int layers() const { return static_cast<int>(layers_.size()); }
  //! Boundary b >= 1 is the first layer of stage b.
  int boundaries() const { return program_.stages() - 1; }

  Score score(const std::vector<int>& cut) {
    costs_.stages = cut_stages(layers_, cut);
    spent_ += judge_.price();
    return judge_(costs_);
  }

  //! Returns the score if the partition is better than `rival`. The lower bound decides most cases.
  std::optional<Score> beats(const std::vector<int>& cut, const Score& rival) {
    costs_.stages = cut_stages(layers_, cut);
    spent_ += static_cast<std::size_t>(program_.stages());
    const double least =
        lower_bound(program_.placement(), program_.microbatches(), costs_, program_.has_backward());
    if (rival.excess == 0 && least >= rival.time * (1 - slack)) return std::nullopt;
    spent_ += judge_.price();
    const Score found = judge_(costs_);
    return found.better_than(rival) ? std::optional(found) : std::nullopt;
  }

  //! Whether the budget suffices to try all partitions, even if the bound excludes none.
  bool few_cuts() const {
    double cuts = 1;
    for (int b = 1; b <= boundaries(); ++b) cuts *= static_cast<double>(layers() - b) / b;
    return cuts * static_cast<double>(judge_.price()) <= static_cast<double>(few_cuts_budget);
  }

  //! The same number of layers in each stage (up to rounding).
  std::vector<int> even_cut() const {
    std::vector<int> cut;
    for (int s = 0; s <= program_.stages(); ++s)
      cut.push_back(static_cast<int>(std::int64_t{s} * layers() / program_.stages()));
    return cut;
  }

  void descend_from(std::vector<int> cut, std::size_t until) {
    Score found = score(cut);
    descend(cut, found, until);
    if (found.better_than(best_score_)) best_ = std::move(cut), best_score_ = found;
  }

  //! Moves boundaries first..last by `step` layers. False if a stage would have no layer.
  static bool shift(std::vector<int>& cut, std::size_t first, std::size_t last, int step) {
    if (step < 0 ? cut[first] + step <= cut[first - 1] : cut[last] + step >= cut[last + 1]) return false;
    for (std::size_t b = first; b <= last; ++b) cut[b] += step;
    return true;
  }

  //! Repeatedly takes the best move of one boundary by one layer. If none improves, takes the first
  //! improvement that moves a boundary further, or several adjacent ones together.
  void descend(std::vector<int>& cut, Score& mine, std::size_t until) {
    while (spent_ < until && (steepest(cut, mine) || first_far(cut, mine, until))) {
    }
  }

  bool steepest(std::vector<int>& cut, Score& mine) {
    std::vector<int> best;
    for (int b = 1; b <= boundaries(); ++b) {
      for (const int step : {-1, 1}) {
        std::vector<int> trial = cut;
        const auto at = static_cast<std::size_t>(b);
        if (!shift(trial, at, at, step)) continue;
        if (const auto found = beats(trial, mine)) mine = *found, best = std::move(trial);
      }
    }
    if (best.empty()) return false;
    cut = std::move(best);
    return true;
  }

  bool first_far(std::vector<int>& cut, Score& mine, std::size_t until) {
    for (int width = 1; width <= boundaries(); ++width) {
      for (int b = 1; b + width - 1 <= boundaries(); ++b) {
        for (const int step : {-1, 1, -2, 2, -4, 4}) {
          if (spent_ >= until) return false;
          std::vector<int> trial = cut;
          const auto at = static_cast<std::size_t>(b);
          if (!shift(trial, at, at + static_cast<std::size_t>(width) - 1, step)) continue;
          const auto found = beats(trial, mine);
          if (!found) continue;
          mine = *found;
          cut = std::move(trial);
          return true;
        }
      }
    }
    return false;
  }

  //! Chooses the start of stage `stage`, then of the following stages. False if the budget ran out.
  bool enumerate(std::vector<int>& cut, int stage, std::vector<Load>& loads) {
    const auto s = static_cast<std::size_t>(stage);
    const int from = cut[s - 1];
    const bool last = stage == program_.stages();
    const int first = last ? layers() : from + 1,
              most = last ? layers() : layers() - (program_.stages() - stage);
    for (int to = first; to <= most; ++to) {
      if (++spent_ > enumeration_ends_) return false;
      Load& load = loads[static_cast<std::size_t>(program_.placement().rank_of(StageId(stage - 1)).value)];
      const Load before = load;
      add(load, from, to);
      const bool prunes = best_score_.excess == 0;
      const bool too_much = prunes && load.bound() >= best_score_.time * (1 - slack);
      bool finished = true;
      if (!too_much && !(prunes && rest_too_slow(to, stage))) {
        cut[s] = to;
        if (!last) {
          finished = enumerate(cut, stage + 1, loads);
        } else if (const auto found = beats(cut, best_score_)) {
          best_ = cut, best_score_ = *found;
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
    const int left = std::min(program_.stages() - stage, program_.ranks());
    const double rest = work_.back() - work_[static_cast<std::size_t>(to)];
    return left > 0 && program_.microbatches() * rest / left >= best_score_.time * (1 - slack);
  }

  //! Alternates between descents from random partitions and from perturbations of the best one.
  void restart() {
    std::mt19937 random(1);
    const auto pick = [&](int count) { return static_cast<int>(random() % static_cast<unsigned>(count)); };
    for (int round = 0; spent_ < search_budget; ++round) {
      std::vector<int> cut = round % 2 == 0 ? even_cut() : best_;
      const int moves = round % 2 == 0 ? 2 * boundaries() : 1 + pick(3);
      for (int i = 0; i < moves; ++i) {
        const auto b = static_cast<std::size_t>(1 + pick(boundaries()));
        const int low = cut[b - 1] + 1, high = cut[b + 1] - 1;
        cut[b] = low + pick(high - low + 1);
      }
      descend_from(std::move(cut), search_budget);
    }
  }

  std::span<const Layer> layers_;
  const schedule::Program& program_;
  Costs costs_;
  Judge judge_;
  std::vector<double> forward_, back_, work_, to_input_;  //!< prefix sums over the layers
  std::vector<int> best_;
  Score best_score_;
  std::size_t spent_ = 0, enumeration_ends_ = 0;
};

}  // namespace

CutSearch search_cuts(std::span<const Layer> layers, const schedule::Program& program, const Costs& links,
                      std::optional<std::uint64_t> memory_cap, std::vector<int> start) {
  std::vector<std::vector<int>> starts{std::move(start)};
  const bool plain = is_plain(layers, program);
  if (!plain) {  // the quick evaluation still finds a good start
    Search rough(layers, program, links, Judge(program, memory_cap, true));
    starts.push_back(rough.run(starts).first_layer);
  }
  return Search(layers, program, links, Judge(program, memory_cap, plain)).run(starts);
}

}  // namespace penstock::plan
