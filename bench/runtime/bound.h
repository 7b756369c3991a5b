// Lower bound of the step time of a program, from the measured times of its computations: every action starts
// as soon as the previous action of its rank and its dependencies are done, and transfers take no time.
#pragma once

#include "schedule/dependencies.h"

#include <penstock/penstock.h>

#include <ATen/ATen.h>

#include <algorithm>
#include <stdexcept>
#include <vector>

namespace penstock::bench {

inline schedule::Fact sent_for(schedule::Fact fact) {
  if (fact.kind == schedule::FactKind::ForwardReceived) fact.kind = schedule::FactKind::ForwardSent;
  if (fact.kind == schedule::FactKind::BackwardReceived) fact.kind = schedule::FactKind::BackwardSent;
  return fact;
}

//! `mine` has the times of this rank. Collective: every rank must call it.
inline double bound(const schedule::Program& program, const comm::Group& group,
                    const schedule::Timeline& mine) {
  std::vector<double> own;
  for (const schedule::TimedAction& timed : mine.ranks[static_cast<std::size_t>(group.rank())])
    own.push_back(timed.action.is_compute() ? timed.end - timed.start : 0);
  std::vector<std::vector<double>> times;
  for (const c10::IValue& list : group.all_gather_object(c10::IValue(own)))
    times.push_back(list.toDoubleVector());

  const schedule::ActionContext context{program.wiring(), program.placement(), program.microbatches(),
                                        schedule::ProgramLevel::Lowered};
  const schedule::FactIndex index(program.wiring(), program.microbatches());
  std::vector<double> known(index.size(), -1);
  std::vector<std::size_t> next(times.size(), 0), timed(times.size(), 0);
  std::vector<double> clock(times.size(), 0);
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t rank = 0; rank < times.size(); ++rank) {
      const schedule::ActionList& actions = program.of(Rank(static_cast<int>(rank)));
      for (; next[rank] < actions.size(); ++next[rank]) {
        const schedule::Action& action = actions[next[rank]];
        if (action.is_idle()) continue;
        double ready = clock[rank];
        bool can = true;
        for_each_need(action, context, [&](const schedule::Fact& fact) {
          if (action.is_recv())
            return;  // a receive is only posted; the action that uses the value waits for the send
          const double when = known[index(sent_for(fact))];
          can = can && when >= 0;
          ready = std::max(ready, when);
        });
        if (!can) break;
        clock[rank] = ready + times[rank][timed[rank]++];
        for_each_yield(action, context,
                       [&](const schedule::Fact& fact) { known[index(fact)] = clock[rank]; });
        moved = true;
      }
    }
  }
  for (std::size_t rank = 0; rank < times.size(); ++rank)
    if (timed[rank] != times[rank].size()) throw std::logic_error("the program did not come to its end");
  return *std::max_element(clock.begin(), clock.end());
}

}  // namespace penstock::bench
