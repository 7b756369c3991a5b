// Runs the lists until all ranks are done or all wait. If all wait, the wait-for graph has a cycle.
#include "schedule/dependencies.h"
#include "schedule/validate/checks.h"

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

namespace penstock::schedule {
namespace {

class Run {
 public:
  Run(const Subject& subject, const FactIndex& index, const FactTable& yielded, SendMode mode)
      : subject_(subject),
        index_(index),
        yielded_(yielded),
        blocking_(mode == SendMode::Blocking),
        known_(index.size(), 0),
        next_(subject.ranks.size(), 0) {}

  // Runs all lists. True if every rank reaches the end of its list.
  bool finish() {
    std::vector<std::size_t> work(subject_.ranks.size());
    std::vector<char> queued(subject_.ranks.size(), 1);
    for (std::size_t i = 0; i < work.size(); ++i) work[i] = work.size() - 1 - i;
    const auto wake = [&](std::size_t rank) {
      if (queued[rank] != 0) return;
      queued[rank] = 1;
      work.push_back(rank);
    };
    while (!work.empty()) {
      const std::size_t rank = work.back();
      work.pop_back();
      queued[rank] = 0;
      const ActionList& list = subject_.ranks[rank];
      for (; next_[rank] < list.size(); ++next_[rank]) {
        const Action& action = list[next_[rank]];
        if (missing(rank, action)) break;
        for_each_yield(action, subject_.context, [&](const Fact& fact) { known_[index_(fact)] = 1; });
        wake_others(action, wake);
      }
    }
    for (std::size_t rank = 0; rank < next_.size(); ++rank) {
      if (next_[rank] < subject_.ranks[rank].size()) return false;
    }
    return true;
  }

  void report(Findings& findings) const;

 private:
  bool compute_level() const { return subject_.context.level == ProgramLevel::Compute; }

  // The fact that another rank must yield before the action can run. Other checks report facts that no action
  // yields and missing facts of the rank itself.
  std::optional<Fact> missing(std::size_t rank, const Action& action) const {
    std::optional<Fact> found;
    const auto wait_for = [&](const Fact& fact) {
      if (!found && known_[index_(fact)] == 0 && yielded_[index_(fact)] != 0) found = fact;
    };
    if (blocking_ && action.is_send()) {
      for_each_yield(action, subject_.context, [&](const Fact& sent) { wait_for(other_end(sent)); });
    }
    if (!action.is_compute()) return found;
    for_each_need(action, subject_.context, [&](const Fact& fact) {
      if (fact.kind == FactKind::ForwardReceived || fact.kind == FactKind::BackwardReceived) {
        wait_for(other_end(fact));
      } else if (compute_level() && subject_.rank_of(StageId(fact.index)) != rank) {
        wait_for(fact);
      }
    });
    return found;
  }

  // Maps the fact that a message was sent to the fact that it was received, and vice versa.
  static Fact other_end(Fact fact) {
    switch (fact.kind) {
      case FactKind::ForwardSent:
        fact.kind = FactKind::ForwardReceived;
        break;
      case FactKind::ForwardReceived:
        fact.kind = FactKind::ForwardSent;
        break;
      case FactKind::BackwardSent:
        fact.kind = FactKind::BackwardReceived;
        break;
      case FactKind::BackwardReceived:
        fact.kind = FactKind::BackwardSent;
        break;
      case FactKind::Output:
      case FactKind::InputGradient:
      case FactKind::WeightGradient:
        break;
    }
    return fact;
  }

  template <class Wake>
  void wake_others(const Action& action, Wake&& wake) const {
    if (action.is_transfer()) wake(subject_.rank_of(action.peer()));
    if (!compute_level()) return;
    const Wiring& wiring = subject_.context.wiring;
    for_each_part(action, [&](const Action& part) {
      if (part.kind() == ActionKind::Forward) {
        for (const int edge : wiring.out_of(part.stage())) wake(subject_.rank_of(wiring.edge(edge).to));
      } else {
        for (const int edge : wiring.into(part.stage())) wake(subject_.rank_of(wiring.edge(edge).from));
      }
    });
  }

  // The rank and step of the action that yields a fact.
  std::pair<std::size_t, std::size_t> giver(const Fact& fact) const {
    const Wiring& wiring = subject_.context.wiring;
    StageId stage(fact.index);
    if (fact.kind == FactKind::ForwardSent || fact.kind == FactKind::BackwardReceived)
      stage = wiring.edge(fact.index).from;
    if (fact.kind == FactKind::ForwardReceived || fact.kind == FactKind::BackwardSent)
      stage = wiring.edge(fact.index).to;
    const std::size_t rank = subject_.rank_of(stage);
    const ActionList& list = subject_.ranks[rank];
    std::size_t step = next_[rank];
    for (bool found = false; step < list.size(); ++step) {
      for_each_yield(list[step], subject_.context,
                     [&](const Fact& given) { found = found || given == fact; });
      if (found) break;
    }
    return {rank, step};
  }

  const Subject& subject_;
  const FactIndex& index_;
  const FactTable& yielded_;
  bool blocking_;
  FactTable known_;
  std::vector<std::size_t> next_;
};

void Run::report(Findings& findings) const {
  const auto name = [&](std::size_t rank, std::size_t step) {
    return findings.location(rank, step) + ", " + to_string(subject_.ranks[rank][step]);
  };
  // Each waiting rank waits for exactly one other, so the chain from any of them leads into a cycle.
  std::size_t rank = 0;
  while (next_[rank] == subject_.ranks[rank].size()) ++rank;
  std::vector<std::size_t> seen;
  std::vector<std::string> texts;
  while (std::find(seen.begin(), seen.end(), rank) == seen.end()) {
    seen.push_back(rank);
    const std::size_t step = next_[rank];
    const auto [peer, peer_step] = giver(*missing(rank, subject_.ranks[rank][step]));
    std::string text = name(rank, step);
    if (peer_step != next_[peer]) text += " (waits for " + name(peer, peer_step) + ")";
    texts.push_back(text);
    rank = peer;
  }
  const auto start = static_cast<std::size_t>(std::find(seen.begin(), seen.end(), rank) - seen.begin());
  std::string cycle;
  for (std::size_t i = start; i < texts.size(); ++i) cycle += texts[i] + " -> ";
  findings.error(findings.location(rank, next_[rank]), "deadlock: " + cycle + name(rank, next_[rank]));
}

}  // namespace

void check_deadlock(const Subject& subject, const FactIndex& index, const FactTable& yielded, SendMode mode,
                    Findings& findings) {
  Run run(subject, index, yielded, mode);
  if (!run.finish()) run.report(findings);
}

}  // namespace penstock::schedule
