// Follows a rank of `penstock train`: reports its progress to the launcher and triggers injected faults.
#pragma once

#include "train/display/progress_board.h"
#include "train/rank/fault.h"

#include <penstock/train/trainer.h>

namespace penstock::tool {

class TrainingHook : public train::RankHook {
 public:
  explicit TrainingHook(Rank rank) : faults_(Faults::from_environment(rank)), progress_(rank) {}

  //! Reports that the process has started. Triggers the faults that are due `at=start`.
  void on_start();
  void on_phase(train::RunPhase phase, const train::RankState& state) override;
  void on_action(const schedule::Action& action, const train::RankState& state) override;
  //! Also receives, if a fault is set for one.
  bool follows(schedule::ActionKind kind) const override;

 private:
  Faults faults_;
  RankProgress progress_;
};

//! Calls `on_start` for the rank in the environment, if this process is one. Call before joining a world.
void report_start();

}  // namespace penstock::tool
