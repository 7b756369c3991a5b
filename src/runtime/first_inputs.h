// What a pipeline of static shapes remembers of its first step, so that an error can name what has changed.
#pragma once

#include "runtime/step_state.h"

#include <string>
#include <vector>

namespace penstock {

class FirstInputs {
 public:
  //! Keeps the metadata of this rank's inputs, by microbatch.
  void keep(const StepBatch& batch, std::size_t microbatches);

  //! What this rank's inputs have that the first ones had not.
  struct Changes {
    std::string text;            //!< every difference; empty if there is none
    bool dtype = false;          //!< a tensor has another dtype
    bool requires_grad = false;  //!< a tensor requires a gradient and did not, or the other way round
  };
  Changes changes(const StepBatch& batch) const;

  //! The error with the changes of all ranks, which must call it together.
  ShapeError error(const PipelineSetup& setup, const StepBatch& batch, MicrobatchId microbatch) const;

 private:
  struct Leaf {
    std::string path;
    bool tensor = false;
    std::vector<std::int64_t> shape;
    at::ScalarType dtype = at::kFloat;
    bool requires_grad = false;
    std::uint64_t value = 0;  // of what is no tensor: its signature
    std::string text;
  };
  using Leaves = std::vector<Leaf>;

  static Leaf leaf_of(std::string path, const c10::IValue& value);
  static Leaves leaves_of(const StepBatch& batch, std::size_t microbatch);
  static std::vector<std::string> differences(const Leaf& first, const Leaf& now, Changes& changes);

  std::vector<Leaves> microbatches_;
};

}  // namespace penstock
