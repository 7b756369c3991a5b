// Stores replicated activations as shards between the forward and the backward pass.
#pragma once

#include <penstock/tensor/mesh.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace penstock::parallel {

//! During its lifetime, distributed tensors that operators on this thread save for backward and that are
//! replicated on the one-axis mesh are stored sharded along `dim`; parameters are excluded. The backward pass
//! gathers them again. This divides their memory by the number of ranks, at the cost of one all-gather per
//! tensor. Scopes nest; the innermost one applies.
class InputReshard {
 public:
  explicit InputReshard(const tensor::DeviceMesh& mesh, std::int64_t dim = 0);
  ~InputReshard();
  InputReshard(const InputReshard&) = delete;
  InputReshard& operator=(const InputReshard&) = delete;

 private:
  std::shared_ptr<void> scope_;
};

}  // namespace penstock::parallel
