// Activations that are whole on every rank, kept for backward as slices.
#pragma once

#include <penstock/tensor/mesh.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace penstock {

//! While it lives, what operators of this thread save for backward is kept cut along `dim` over a mesh of one
//! axis where it is a distributed tensor that is replicated there (parameters are not touched), and gathered
//! again when backward reads it: 1 / ranks of the memory for one all-gather each. Scopes nest; the innermost
//! counts.
class InputReshard {
 public:
  explicit InputReshard(const DeviceMesh& mesh, std::int64_t dim = 0);
  ~InputReshard();
  InputReshard(const InputReshard&) = delete;
  InputReshard& operator=(const InputReshard&) = delete;

  struct Scope;

 private:
  std::unique_ptr<Scope> scope_;
};

}  // namespace penstock
