// Pass: inserts a send and a receive for every value used on another rank. Runs all ranks in lockstep, one
// action per round, lowest rank first. When an action produces a value that another rank uses, the pass
// appends the send here and the receive there at the same time. Both ranks of a pair therefore have the same
// transfer order, and the order of insertion is a run without waits: the result is safe in every send mode.
#include "base/text.h"
#include "schedule/dependencies.h"

#include <penstock/base/error.h>
#include <penstock/schedule/lower.h>
#include <penstock/schedule/validate.h>

#include <bit>
#include <cstdint>
#include <utility>

namespace penstock::schedule {
namespace {

// The ranks that may be able to continue, as a bit set: a round is cheap if most ranks wait.
class ReadyRanks {
 public:
  explicit ReadyRanks(std::size_t ranks) : words_((ranks + 63) / 64, 0) {}
  void add(std::size_t rank) { words_[rank / 64] |= std::uint64_t{1} << (rank % 64); }
  void remove(std::size_t rank) { words_[rank / 64] &= ~(std::uint64_t{1} << (rank % 64)); }
  // The first ready rank >= `rank`, or end() if there is none.
  std::size_t next(std::size_t rank) const {
    std::size_t word = rank / 64;
    if (word >= words_.size()) return words_.size() * 64;
    std::uint64_t bits = words_[word] & (~std::uint64_t{0} << (rank % 64));
    while (bits == 0) {
      if (++word == words_.size()) return words_.size() * 64;
      bits = words_[word];
    }
    return word * 64 + static_cast<std::size_t>(std::countr_zero(bits));
  }
  std::size_t end() const { return words_.size() * 64; }

 private:
  std::vector<std::uint64_t> words_;
};

std::size_t at(Rank rank) {
  return rank.index();
}

// Calls visit(send, receive) for each transfer of a value that the computation produces.
template <class Visit>
void for_each_transfer(const Action& part, const ActionContext& context, Visit&& visit) {
  const Wiring& wiring = context.wiring;
  const StageId stage = part.stage();
  const MicrobatchId batch = part.microbatch();
  if (part.kind() == ActionKind::Forward) {
    for (const int edge : wiring.out_of(stage)) {
      if (!context.crosses(edge)) continue;
      const StageId to = wiring.edge(edge).to;
      visit(Action::send_forward(stage, batch, to), Action::recv_forward(to, batch, stage));
    }
  } else if (part.kind() == ActionKind::Backward || part.kind() == ActionKind::BackwardInput) {
    for (const int edge : wiring.into(stage)) {
      if (!context.crosses(edge)) continue;
      const StageId to = wiring.edge(edge).from;
      visit(Action::send_backward(stage, batch, to), Action::recv_backward(to, batch, stage));
    }
  }
}

class Inserter {
 public:
  explicit Inserter(const Draft& draft)
      : draft_(draft),
        context_(context_of(draft)),
        index_(draft.wiring, draft.microbatches),
        known_(index_.size(), 0),
        result_(draft.ranks.size()),
        next_(draft.ranks.size(), 0),
        ready_(draft.ranks.size()) {}

  std::vector<ActionList> run() && {
    reserve();
    for (std::size_t rank = 0; rank < result_.size(); ++rank) {
      if (!draft_.ranks[rank].empty()) ready_.add(rank);
    }
    while (ready_.next(0) != ready_.end()) {
      for (std::size_t rank = ready_.next(0); rank != ready_.end(); rank = ready_.next(rank + 1)) step(rank);
    }
    for (std::size_t rank = 0; rank < result_.size(); ++rank) {
      if (next_[rank] != draft_.ranks[rank].size()) refuse(rank);
    }
    return std::move(result_);
  }

 private:
  void reserve() {
    std::vector<std::size_t> size(result_.size());
    for (std::size_t rank = 0; rank < size.size(); ++rank) {
      size[rank] += draft_.ranks[rank].size();
      for (const Action& action : draft_.ranks[rank]) {
        for_each_part(action, [&](const Action& part) {
          for_each_transfer(part, context_, [&](const Action& send, const Action& recv) {
            ++size[at(draft_.placement.rank_of(send.stage()))];
            ++size[at(draft_.placement.rank_of(recv.stage()))];
          });
        });
      }
    }
    for (std::size_t rank = 0; rank < size.size(); ++rank) result_[rank].reserve(size[rank]);
  }

  void step(std::size_t rank) {
    const Action& action = draft_.ranks[rank][next_[rank]];
    bool can_run = true;
    if (action.is_compute()) {
      for_each_need(action, context_,
                    [&](const Fact& fact) { can_run = can_run && known_[index_(fact)] != 0; });
    }
    if (!can_run) {
      ready_.remove(rank);  // until a receive is added to its list
      return;
    }
    result_[rank].push_back(action);
    note(action);
    for_each_part(action, [&](const Action& part) {
      for_each_transfer(part, context_, [&](const Action& send, const Action& recv) {
        const std::size_t peer = at(draft_.placement.rank_of(recv.stage()));
        result_[rank].push_back(send);
        result_[peer].push_back(recv);
        note(recv);
        if (next_[peer] < draft_.ranks[peer].size()) ready_.add(peer);
      });
    });
    if (++next_[rank] == draft_.ranks[rank].size()) ready_.remove(rank);
  }

  void note(const Action& action) {
    for_each_yield(action, context_, [&](const Fact& fact) { known_[index_(fact)] = 1; });
  }

  [[noreturn]] void refuse(std::size_t rank) const {
    const Verdict verdict = validate(compute_only(draft_), draft_.wiring);
    throw ScheduleError(str_cat("the computations can never all run: rank ", rank, " stops at ",
                                to_string(draft_.ranks[rank][next_[rank]]), "\n",
                                penstock::to_string(verdict.findings)));
  }

  const Draft& draft_;
  ActionContext context_;
  FactIndex index_;
  std::vector<std::uint8_t> known_;
  std::vector<ActionList> result_;
  std::vector<std::size_t> next_;
  ReadyRanks ready_;
};

}  // namespace

Draft add_send_recv(Draft draft, const LowerOptions&) {
  for (const ActionList& list : draft.ranks) {
    for (const Action& action : list) {
      if (!action.is_transfer()) continue;
      throw UsageError("the lists already contain transfers, for example " + to_string(action), {},
                       "use the reorder pass to move them");
    }
  }
  draft.ranks = Inserter(draft).run();
  return draft;
}

}  // namespace penstock::schedule
