// Parameters that several stages hold: kept equal, and given the sum of their gradients after every step.
#pragma once

#include "runtime/setup.h"

#include <optional>
#include <vector>

namespace penstock {

class SharedParameters {
 public:
  //! Finds them and sets all copies to the first place's values. Every rank must call it.
  explicit SharedParameters(const PipelineSetup& setup);

  //! Puts the gradients of earlier steps aside, so that a sum holds only what this step adds.
  void begin_step();
  //! Sums what the step added over all places, and adds it to what was put aside.
  void end_step();
  //! Undoes `begin_step` after a failure.
  void abandon_step() noexcept;

  //! Whether another place counts this parameter in norms over all stages.
  bool counted_elsewhere(const at::Tensor& parameter) const;

 private:
  struct Tie {
    std::vector<at::Tensor> copies;   // of this rank, each tensor once
    std::vector<at::Tensor> earlier;  // their gradients before the step
    std::optional<Group> group;       // of the ranks that hold it, where these are several
    bool first_here = false;          // the first place is on this rank
  };
  std::vector<Tie> ties_;
};

}  // namespace penstock
