// Applies merges with a queue of candidates, so that a word of n bytes takes O(n log n) steps.
#include "train/text/byte_pairs.h"

#include <optional>
#include <queue>
#include <tuple>

namespace penstock::train {
namespace {

// A merge of the symbols at `position` and after it. The next candidate has the lowest rank, then position.
struct Candidate {
  std::uint32_t rank = 0;
  std::size_t position = 0;
  std::uint32_t token = 0;

  bool operator<(const Candidate& other) const {
    return std::tie(other.rank, other.position) < std::tie(rank, position);
  }
};

// Symbols are linked in both directions; a symbol that was merged into its left neighbor is gone.
struct Symbol {
  std::uint32_t token = 0;
  std::optional<std::size_t> previous{}, next{};
  bool gone = false;
};

}  // namespace

void BytePairs::apply(std::vector<std::uint32_t>& word) const {
  std::vector<Symbol> symbols(word.size());
  std::priority_queue<Candidate> queue;
  const auto add_candidate = [&](std::size_t left) {
    const Merge* const merge = find(symbols[left].token, symbols[*symbols[left].next].token);
    if (merge != nullptr) queue.push({merge->rank, left, merge->token});
  };
  for (std::size_t i = 0; i < word.size(); ++i) {
    symbols[i].token = word[i];
    if (i > 0) symbols[i].previous = i - 1;
    if (i + 1 < word.size()) symbols[i].next = i + 1;
  }
  for (std::size_t i = 0; i + 1 < word.size(); ++i) add_candidate(i);
  while (!queue.empty()) {
    const Candidate best = queue.top();
    queue.pop();
    Symbol& left = symbols[best.position];
    if (left.gone || !left.next) continue;
    Symbol& right = symbols[*left.next];
    const Merge* const merge = find(left.token, right.token);
    if (merge == nullptr || merge->token != best.token) continue;  // a neighbor was merged in the meantime
    left.token = best.token;
    right.gone = true;
    left.next = right.next;
    if (left.next) symbols[*left.next].previous = best.position;
    if (left.previous) add_candidate(*left.previous);
    if (left.next) add_candidate(best.position);
  }
  word.clear();
  for (const Symbol& symbol : symbols)
    if (!symbol.gone) word.push_back(symbol.token);
}

}  // namespace penstock::train
