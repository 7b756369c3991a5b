// Applies merges with a queue of candidates, so that a list of n symbols takes O(n log n) steps.
#include "train/text/byte_pairs.h"

#include "base/text.h"

#include <penstock/base/error.h>

#include <functional>
#include <limits>
#include <queue>
#include <utility>

namespace penstock::train {
namespace {

// No symbol, and no token: those are smaller than 2^24.
constexpr std::uint32_t kNoSymbol = std::numeric_limits<std::uint32_t>::max();

// Symbols are linked in both directions. One that was merged into its left neighbor has no token.
struct Symbol {
  std::uint32_t token = kNoSymbol, previous = kNoSymbol, next = kNoSymbol;
};

// A merge of the symbol at a position and the one after it: its rank, then the position. The smallest is
// next.
using Candidates =
    std::priority_queue<std::uint64_t, std::vector<std::uint64_t>, std::greater<std::uint64_t>>;

std::uint64_t candidate(const Merge& merge, std::uint32_t position) {
  return std::uint64_t{merge.rank} << 32 | position;
}

std::vector<Symbol> linked(const std::vector<std::uint32_t>& tokens) {
  std::vector<Symbol> symbols(tokens.size());
  for (std::uint32_t i = 0; i < symbols.size(); ++i) {
    symbols[i].token = tokens[i];
    if (i > 0) symbols[i].previous = i - 1;
    if (i + 1 < symbols.size()) symbols[i].next = i + 1;
  }
  return symbols;
}

}  // namespace

void BytePairs::apply(std::vector<std::uint32_t>& symbols) const {
  if (symbols.size() >= kNoSymbol)
    throw UsageError(str_cat("a text of ", symbols.size(), " characters without a gap between tokens"), {},
                     "divide the text into several files");
  std::vector<Symbol> links = linked(symbols);
  std::vector<std::uint64_t> first;
  for (std::uint32_t i = 0; i + 1 < links.size(); ++i)
    if (const Merge* const merge = find(links[i].token, links[i + 1].token))
      first.push_back(candidate(*merge, i));
  Candidates queue(std::greater<std::uint64_t>(), std::move(first));
  const auto add_candidate = [&](std::uint32_t left) {
    const Merge* const merge = find(links[left].token, links[links[left].next].token);
    if (merge != nullptr) queue.push(candidate(*merge, left));
  };
  while (!queue.empty()) {
    const auto rank = static_cast<std::uint32_t>(queue.top() >> 32);
    const auto position = static_cast<std::uint32_t>(queue.top());
    queue.pop();
    Symbol& left = links[position];
    if (left.token == kNoSymbol || left.next == kNoSymbol) continue;
    Symbol& right = links[left.next];
    const Merge* const merge = find(left.token, right.token);
    if (merge == nullptr || merge->rank != rank) continue;  // a neighbor was merged in the meantime
    left.token = merge->token;
    right.token = kNoSymbol;
    left.next = right.next;
    if (left.next != kNoSymbol) links[left.next].previous = position;
    if (left.previous != kNoSymbol) add_candidate(left.previous);
    if (left.next != kNoSymbol) add_candidate(position);
  }
  symbols.clear();
  for (const Symbol& symbol : links)
    if (symbol.token != kNoSymbol) symbols.push_back(symbol.token);
}

}  // namespace penstock::train
