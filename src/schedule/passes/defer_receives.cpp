// Pass: posts receives as late as possible, because a posted receive slows down computations on some
// machines. A receive moves to the use of its value, but not past a later transfer with the same rank: the
// transfers of a pair keep their order, so lists that are safe with ordered sends stay safe. (With blocking
// sends they may not; the validator checks it.)
#include "schedule/dependencies.h"

#include <penstock/schedule/lower.h>

#include <cstdint>
#include <deque>
#include <map>
#include <utility>

namespace penstock::schedule {
namespace {

class Deferrer {
 public:
  explicit Deferrer(const Draft& draft)
      : draft_(draft),
        context_(context_of(draft)),
        index_(draft.wiring, draft.microbatches),
        posted_(index_.size(), 0) {}

  ActionList run(const ActionList& list) {
    result_.clear();
    result_.reserve(list.size());
    for (const Action& action : list) {
      if (action.is_recv()) {
        waiting_[peer_of(action)].push_back(action);
        continue;
      }
      if (action.is_send()) post_all(waiting_[peer_of(action)]);
      if (action.is_compute()) {
        for_each_need(action, context_, [&](const Fact& fact) { post_until(fact); });
      }
      result_.push_back(action);
    }
    for (auto& [peer, queue] : waiting_) post_all(queue);
    return std::move(result_);
  }

 private:
  int peer_of(const Action& transfer) const { return draft_.placement.rank_of(transfer.peer()).value; }

  void post(std::deque<Action>& queue) {
    for_each_yield(queue.front(), context_, [&](const Fact& fact) { posted_[index_(fact)] = 1; });
    result_.push_back(queue.front());
    queue.pop_front();
  }

  void post_all(std::deque<Action>& queue) {
    while (!queue.empty()) post(queue);
  }

  // Posts the receive that yields the fact, after all earlier receives of the same pair of ranks.
  void post_until(const Fact& fact) {
    if (fact.kind != FactKind::ForwardReceived && fact.kind != FactKind::BackwardReceived) return;
    const StageEdge& edge = draft_.wiring.edge(fact.index);
    const StageId sender = fact.kind == FactKind::ForwardReceived ? edge.from : edge.to;
    std::deque<Action>& queue = waiting_[draft_.placement.rank_of(sender).value];
    while (posted_[index_(fact)] == 0 && !queue.empty()) post(queue);
  }

  const Draft& draft_;
  ActionContext context_;
  FactIndex index_;
  std::vector<std::uint8_t> posted_;
  std::map<int, std::deque<Action>> waiting_;  // by the peer's rank
  ActionList result_;
};

}  // namespace

Draft defer_receives(Draft draft, const LowerOptions&) {
  std::vector<ActionList> ranks;
  Deferrer deferrer(draft);
  for (const ActionList& list : draft.ranks) ranks.push_back(deferrer.run(list));
  draft.ranks = std::move(ranks);
  return draft;
}

}  // namespace penstock::schedule
