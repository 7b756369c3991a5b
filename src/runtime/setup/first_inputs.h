// The input metadata of the first step with ShapeMode::Static, so that an error can name every change.
#pragma once

#include "runtime/step/step_state.h"

#include <string>
#include <vector>

namespace penstock::runtime {

class FirstInputs {
 public:
  //! Stores the metadata of this rank's inputs, by microbatch.
  void keep(const StepBatch& batch, std::size_t microbatches);

  //! The differences between this rank's inputs and those of the first step.
  struct Changes {
    std::string text;            //!< every difference; empty if there is none
    bool dtype = false;          //!< the dtype of a tensor changed
    bool layout = false;         //!< the mesh or the placements of a tensor changed
    bool requires_grad = false;  //!< `requires_grad` of a tensor changed
  };
  Changes changes(const StepBatch& batch) const;

  //! Returns the error with the changes of this rank.
  ShapeError local_error(const PipelineSetup& setup, const StepBatch& batch) const;
  //! Returns the error with the changes of all ranks. Collective.
  ShapeError error(const PipelineSetup& setup, const StepBatch& batch, MicrobatchId microbatch) const;

 private:
  struct Leaf {
    std::string path;
    bool tensor = false;
    std::vector<std::int64_t> shape;
    at::ScalarType dtype = at::kFloat;
    std::string layout;  // mesh and placements; empty for a plain tensor
    bool requires_grad = false;
    std::uint64_t value = 0;  // signature, for non-tensors
    std::string text;
  };
  using Leaves = std::vector<Leaf>;

  static Leaf leaf_of(std::string path, const c10::IValue& value);
  static Leaves leaves_of(const StepBatch& batch, std::size_t microbatch);
  static std::vector<std::string> differences(const Leaf& first, const Leaf& now, Changes& changes);

  std::vector<Leaves> microbatches_;
};

}  // namespace penstock::runtime
