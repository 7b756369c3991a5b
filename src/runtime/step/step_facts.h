// Tracks which actions of a step have run on this rank. The validator has already checked that the order of
// the program is correct. This catches what the validator cannot see: replaced actions that skip or repeat
// the default implementation.
#pragma once

#include "schedule/dependencies.h"

#include <penstock/schedule/program.h>

#include <vector>

namespace penstock::runtime {

class StepFacts {
 public:
  explicit StepFacts(const schedule::Program& program)
      : context_{program.wiring(), program.placement(), program.microbatches(),
                 schedule::ProgramLevel::Lowered},
        index_(program.wiring(), program.microbatches()),
        known_(index_.size(), false) {}

  //! Throws ScheduleError if a dependency has not run on this rank, or if the action has already run.
  void check(const schedule::Action& action) const;
  void add(const schedule::Action& action);

 private:
  schedule::ActionContext context_;
  schedule::FactIndex index_;
  std::vector<bool> known_;
};

}  // namespace penstock::runtime
