// Builds the list of one rank slot by slot. Each stage counts its own microbatches, so that a generator
// specifies only which stage does what next, as the diagrams in papers do.
#pragma once

#include "schedule/generators/generators.h"

#include <penstock/base/ids.h>
#include <penstock/schedule/action.h>
#include <penstock/schedule/generate.h>

#include <array>
#include <cstddef>
#include <limits>
#include <utility>
#include <vector>

namespace penstock::schedule::generators {

class Table {
 public:
  //! `stages` are the stages of the rank in the generator's local numbering: local stage 0, 1, ….
  //! `computations` and `idle_slots` are the expected numbers.
  Table(std::vector<int> stages, std::size_t computations, IdleSlots idle = IdleSlots::Keep,
        int idle_slots = 0)
      : stages_(std::move(stages)), next_(stages_.size()), idle_(idle) {
    list_.reserve(computations + (idle == IdleSlots::Keep ? static_cast<std::size_t>(idle_slots) : 0));
  }
  //! Computations of the microbatches from `count` on become idle slots.
  void omit_from(int count) { microbatches_ = count; }

  void idle(int slots = 1) {
    if (slots > 0 && idle_ == IdleSlots::Keep) list_.resize(list_.size() + static_cast<std::size_t>(slots));
  }
  void forward(int local) { add(Action::forward(stage(local), take(local, 0))); }
  //! B.
  void backward(int local) { add(next_backward(local)); }
  //! I.
  void input(int local) { add(Action::backward_input(stage(local), take(local, 1))); }
  //! W.
  void weight(int local) { add(Action::backward_weight(stage(local), take(local, 2))); }
  void overlap(int forward_local, int backward_local) {
    const Action first = Action::forward(stage(forward_local), take(forward_local, 0));
    list_.push_back(Action::overlap(first, next_backward(backward_local)));
  }

  int forwards(int local) const { return next_[static_cast<std::size_t>(local)][0]; }
  int inputs(int local) const { return next_[static_cast<std::size_t>(local)][1]; }
  int weights(int local) const { return next_[static_cast<std::size_t>(local)][2]; }

  ActionList take_list() && { return std::move(list_); }

 private:
  void add(const Action& action) {
    if (action.microbatch().value < microbatches_) {
      list_.push_back(action);
    } else {
      idle();
    }
  }
  StageId stage(int local) const { return StageId(stages_[static_cast<std::size_t>(local)]); }
  MicrobatchId take(int local, std::size_t what) {
    return MicrobatchId(next_[static_cast<std::size_t>(local)][what]++);
  }
  Action next_backward(int local) {
    take(local, 2);
    return Action::backward(stage(local), take(local, 1));
  }

  std::vector<int> stages_;
  std::vector<std::array<int, 3>> next_;  // microbatch of the next F, of the next I or B, of the next W or B
  IdleSlots idle_;
  int microbatches_ = std::numeric_limits<int>::max();
  ActionList list_;
};

//! The stages of a rank in the loop placement: rank, rank + ranks, ….
inline std::vector<int> looped_stages(const ScheduleShape& shape, int rank) {
  std::vector<int> stages;
  stages.reserve(static_cast<std::size_t>(shape.stages_per_rank));
  for (int local = 0; local < shape.stages_per_rank; ++local) stages.push_back(rank + local * shape.ranks);
  return stages;
}

//! The two stages of a rank in the V placement: in the ascending half, and in the descending half.
inline std::vector<int> v_stages(const ScheduleShape& shape, int rank) {
  return {rank, 2 * shape.ranks - 1 - rank};
}

}  // namespace penstock::schedule::generators
