// The critical path consists of blocks: consecutive actions of one rank without gaps. Only a reordering
// within a block can shorten the step: a W can move behind the block, and the first or last pair can be
// swapped (these moves are sufficient, as in job-shop scheduling). To cross plateaus, moves that change
// nothing are accepted for a while.
#include "plan/auto/improve.h"

#include <algorithm>
#include <random>

namespace penstock::plan::auto_search {
namespace {

struct Move {
  int rank = 0;
  std::size_t from = 0;  //!< the action at index `from` moves to index `to`
  std::size_t to = 0;
};

struct Block {
  int rank = 0;
  std::size_t first = 0, last = 0;
};

std::vector<Block> critical_blocks(const Evaluation& evaluation) {
  std::size_t at = 0;
  for (std::size_t i = 1; i < evaluation.end.size(); ++i) {
    if (evaluation.end[i] > evaluation.end[at]) at = i;
  }
  std::vector<Block> blocks;
  const auto& offset = evaluation.offset;
  for (auto i = static_cast<std::int32_t>(at); i >= 0; i = evaluation.bound_by[static_cast<std::size_t>(i)]) {
    const auto entry = static_cast<std::size_t>(i);
    const auto rank =
        static_cast<int>(std::upper_bound(offset.begin(), offset.end(), entry) - offset.begin()) - 1;
    const std::size_t step = entry - offset[static_cast<std::size_t>(rank)];
    if (!blocks.empty() && blocks.back().rank == rank && blocks.back().first == step + 1) {
      blocks.back().first = step;
    } else {
      blocks.push_back({rank, step, step});
    }
  }
  return blocks;
}

std::vector<Move> moves_of(const Order& order, const std::vector<Block>& blocks) {
  std::vector<Move> moves;
  for (const Block& block : blocks) {
    const schedule::ActionList& list = order[static_cast<std::size_t>(block.rank)];
    for (std::size_t i = block.first; i < block.last; ++i) {
      if (list[i].kind() == schedule::ActionKind::BackwardWeight)
        moves.push_back({block.rank, i, block.last});
    }
    if (block.last == block.first) continue;
    moves.push_back({block.rank, block.last, block.last - 1});
    moves.push_back({block.rank, block.first, block.first + 1});
    if (block.last > block.first + 1) moves.push_back({block.rank, block.last, block.first});
  }
  return moves;
}

void apply(schedule::ActionList& list, std::size_t from, std::size_t to) {
  const auto begin = list.begin();
  const auto at = [&](std::size_t i) { return begin + static_cast<std::ptrdiff_t>(i); };
  if (from < to) {
    std::rotate(at(from), at(from + 1), at(to + 1));
  } else {
    std::rotate(at(to), at(from), at(from + 1));
  }
}

}  // namespace

double improve(const Problem& problem, Order& order, int budget) {
  constexpr double slack = 1e-12;
  constexpr int most_sideways = 40;
  Evaluation current, trial;
  evaluate(problem, order, current);
  Order best = order;
  double best_makespan = current.makespan;
  std::mt19937 random(1);
  int sideways = 0;
  while (budget > 0) {
    std::vector<Move> moves = moves_of(order, critical_blocks(current));
    std::shuffle(moves.begin(), moves.end(), random);
    bool moved = false;
    for (const Move& move : moves) {
      if (budget-- <= 0) break;
      schedule::ActionList& list = order[static_cast<std::size_t>(move.rank)];
      apply(list, move.from, move.to);
      if (fits(problem, list, move.rank)) {
        evaluate(problem, order, trial);
        const bool better = trial.makespan < current.makespan * (1 - slack);
        if (better || (trial.makespan <= current.makespan * (1 + slack) && sideways < most_sideways)) {
          sideways = better ? 0 : sideways + 1;
          std::swap(current, trial);
          moved = true;
          if (current.makespan < best_makespan * (1 - slack)) best_makespan = current.makespan, best = order;
          break;
        }
      }
      apply(list, move.to, move.from);
    }
    if (!moved) break;
  }
  order = std::move(best);
  return best_makespan;
}

}  // namespace penstock::plan::auto_search
