// Parameters that several stages hold. Keeps the copies equal and sums their gradients after every step.
#pragma once

#include "runtime/setup/pipeline_setup.h"

#include <optional>
#include <vector>

namespace penstock::runtime {

class SharedParameters {
 public:
  //! Finds the shared parameters and copies the values of the first location to all others. Collective.
  explicit SharedParameters(const PipelineSetup& setup);

  //! Stashes the gradients of earlier steps, so that the sum contains only those of this step.
  void begin_step();
  //! Sums the gradients of this step over all locations and adds the stashed gradients.
  void end_step();
  //! Undoes `begin_step` after a failure.
  void abandon_step() noexcept;

  //! Whether another location counts this parameter in norms over all stages.
  bool counted_elsewhere(const at::Tensor& parameter) const;

 private:
  struct Tie {
    std::vector<at::Tensor> copies;    // on this rank, without duplicates
    std::vector<at::Tensor> earlier;   // their gradients before the step
    std::optional<comm::Group> group;  // the ranks that hold a copy, if more than one
    bool first_here = false;           // the first location is on this rank
  };
  std::vector<Tie> ties_;
};

}  // namespace penstock::runtime
