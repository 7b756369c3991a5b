// Depth-first order over the stages of a rank for interleaved schedules: microbatches run in rounds of about
// as many as there are ranks. A round passes through all stages of a rank before the next round starts.
#pragma once

#include <penstock/schedule/generate.h>

#include <vector>

namespace penstock::schedule::generators {

class Rounds {
 public:
  explicit Rounds(const ScheduleShape& shape);

  //! The number of microbatches in the largest round.
  int largest() const { return sizes_.front(); }
  //! The local stage of each forward pass of a rank, in order.
  std::vector<int> forward_order() const;
  //! The local stage of each backward pass: the same rounds, each from the last stage to the first.
  std::vector<int> backward_order() const;

 private:
  int stages_per_rank_;
  std::vector<int> sizes_;
};

}  // namespace penstock::schedule::generators
