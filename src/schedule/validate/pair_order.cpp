// Checks that both ranks of a pair have the same transfer order. With ordered sends, the transfers of a pair
// run one after the other, so two ranks whose orders differ wait for each other forever.
#include "base/text.h"
#include "schedule/validate/checks.h"

#include <algorithm>
#include <string>
#include <vector>

namespace penstock::schedule {
namespace {

// One end of a transfer: the peer, and the index in the list. Small, because there are many.
struct End {
  std::uint32_t peer;
  std::uint32_t step;
};

// The send of a transfer, which identifies it at both ends.
Action send_of(const Action& action) {
  if (action.kind() == ActionKind::RecvForward) {
    return Action::send_forward(action.peer(), action.microbatch(), action.stage());
  }
  if (action.kind() == ActionKind::RecvBackward) {
    return Action::send_backward(action.peer(), action.microbatch(), action.stage());
  }
  return action;
}

std::vector<End> ends_of(const Subject& subject, std::size_t rank) {
  std::vector<End> ends;
  const ActionList& list = subject.ranks[rank];
  for (std::size_t step = 0; step < list.size(); ++step) {
    if (!list[step].is_transfer()) continue;
    ends.push_back(
        {static_cast<std::uint32_t>(subject.rank_of(list[step].peer())), static_cast<std::uint32_t>(step)});
  }
  std::stable_sort(ends.begin(), ends.end(), [](const End& a, const End& b) { return a.peer < b.peer; });
  return ends;
}

std::pair<std::size_t, std::size_t> with(const std::vector<End>& ends, std::size_t peer) {
  const auto less = [](const End& end, std::size_t rank) { return end.peer < rank; };
  const auto first = std::lower_bound(ends.begin(), ends.end(), peer, less);
  const auto last = std::lower_bound(first, ends.end(), peer + 1, less);
  return {static_cast<std::size_t>(first - ends.begin()), static_cast<std::size_t>(last - ends.begin())};
}

}  // namespace

void check_pair_order(const Subject& subject, Findings& findings) {
  std::vector<std::vector<End>> ends;
  for (std::size_t rank = 0; rank < subject.ranks.size(); ++rank) ends.push_back(ends_of(subject, rank));
  const auto name = [&](std::size_t rank, const End& end) {
    return findings.location(rank, end.step) + ", " + to_string(subject.ranks[rank][end.step]);
  };
  for (std::size_t low = 0; low < ends.size(); ++low) {
    for (std::size_t i = 0; i < ends[low].size();) {
      const std::size_t high = ends[low][i].peer;
      const auto [low_begin, low_end] = with(ends[low], high);
      i = low_end;
      if (high <= low) continue;
      const auto [high_begin, high_end] = with(ends[high], low);
      const std::size_t shared = std::min(low_end - low_begin, high_end - high_begin);
      for (std::size_t k = 0; k < shared; ++k) {
        const End& a = ends[low][low_begin + k];
        const End& b = ends[high][high_begin + k];
        if (send_of(subject.ranks[low][a.step]) == send_of(subject.ranks[high][b.step])) continue;
        findings.error(
            findings.location(low, a.step),
            str_cat("the pair's transfers run in order, but the ranks disagree on transfer ", k, " of ranks ",
                    low, " and ", high, ": ", name(low, a), " -> ", name(high, b), " -> ", name(low, a)));
        break;
      }
    }
  }
}

}  // namespace penstock::schedule
