// What has happened so far in a step on one rank, by the one dependency rule. The validator has proven that a
// program's order is right; this catches what it cannot see: replaced actions that leave out or repeat what
// is usually done.
#pragma once

#include <penstock/schedule/dependencies.h>
#include <penstock/schedule/program.h>

#include <vector>

namespace penstock {

class StepFacts {
 public:
  explicit StepFacts(const Program& program)
      : topology_{program.wiring(), program.placement(), program.microbatches(), Form::Lowered},
        index_(program.wiring(), program.microbatches()),
        known_(index_.size(), false) {}

  //! ScheduleError if something that the action needs has not happened on this rank, or if it has run before.
  void check(const Action& action) const;
  void add(const Action& action);

 private:
  Topology topology_;
  FactIndex index_;
  std::vector<bool> known_;
};

}  // namespace penstock
