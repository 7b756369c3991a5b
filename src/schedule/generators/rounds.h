// Depth-first order over the stages of a rank, as interleaved schedules have it: microbatches go in rounds of
// about as many as there are ranks; a round passes all of a rank's stages before the next round begins.
#pragma once

#include <penstock/schedule/generate.h>

#include <vector>

namespace penstock::generators {

class Rounds {
 public:
  explicit Rounds(const ScheduleShape& shape);

  //! The microbatches of the largest round.
  int largest() const { return sizes_.front(); }
  //! The local stage of each forward of a rank, in order.
  std::vector<int> forward_order() const;
  //! The local stage of each backward: the same rounds, each from the last stage to the first.
  std::vector<int> backward_order() const;

 private:
  int stages_per_rank_;
  std::vector<int> sizes_;
};

}  // namespace penstock::generators
