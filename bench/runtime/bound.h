// The shortest step that a program and the measured times of its computations allow: every action as soon as
// the one before it on its rank and what it needs are done, transfers for nothing.
#pragma once

#include <penstock/penstock.h>
#include <penstock/schedule/dependencies.h>

#include <ATen/ATen.h>

#include <algorithm>
#include <stdexcept>
#include <vector>

namespace penstock::bench {

inline Fact sent_for(Fact fact) {
  if (fact.kind == FactKind::ForwardReceived) fact.kind = FactKind::ForwardSent;
  if (fact.kind == FactKind::BackwardReceived) fact.kind = FactKind::BackwardSent;
  return fact;
}

//! `mine` has this rank's times; every rank must call it.
inline double bound(const Program& program, const Group& group, const Timeline& mine) {
  std::vector<double> own;
  for (const TimedAction& timed : mine.ranks[static_cast<std::size_t>(group.rank())])
    own.push_back(timed.action.is_compute() ? timed.end - timed.start : 0);
  std::vector<std::vector<double>> times;
  for (const c10::IValue& list : group.all_gather_object(c10::IValue(own)))
    times.push_back(list.toDoubleVector());

  const Topology topology{program.wiring(), program.placement(), program.microbatches(), Form::Lowered};
  const FactIndex index(program.wiring(), program.microbatches());
  std::vector<double> known(index.size(), -1);
  std::vector<std::size_t> next(times.size(), 0), timed(times.size(), 0);
  std::vector<double> clock(times.size(), 0);
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t rank = 0; rank < times.size(); ++rank) {
      const ActionList& actions = program.of(Rank(static_cast<int>(rank)));
      for (; next[rank] < actions.size(); ++next[rank]) {
        const Action& action = actions[next[rank]];
        if (action.is_idle()) continue;
        double ready = clock[rank];
        bool can = true;
        for_each_need(action, topology, [&](const Fact& fact) {
          if (action.is_recv()) return;  // only posted; whoever uses the value waits for its send
          const double when = known[index(sent_for(fact))];
          can = can && when >= 0;
          ready = std::max(ready, when);
        });
        if (!can) break;
        clock[rank] = ready + times[rank][timed[rank]++];
        for_each_yield(action, topology, [&](const Fact& fact) { known[index(fact)] = clock[rank]; });
        moved = true;
      }
    }
  }
  for (std::size_t rank = 0; rank < times.size(); ++rank)
    if (timed[rank] != times[rank].size()) throw std::logic_error("the program did not come to its end");
  return *std::max_element(clock.begin(), clock.end());
}

}  // namespace penstock::bench
