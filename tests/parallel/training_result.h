// The results of a short training run, and the difference between two of them.
#pragma once

#include "support/mesh_ranks.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace penstock::test {

struct TrainingResult {
  at::Tensor output;  //!< of the first step; optional
  std::vector<double> losses;
  std::vector<at::Tensor> gradients, parameters;
};

//! The difference between a run with sharded parameters and a dense run.
inline double distance(const TrainingResult& sharded, const TrainingResult& dense) {
  double far = dense.output.defined() ? difference(sharded.output, dense.output) : 0;
  for (std::size_t i = 0; i < dense.losses.size(); ++i)
    far = std::max(far, std::abs(sharded.losses[i] - dense.losses[i]));
  for (std::size_t i = 0; i < dense.parameters.size(); ++i) {
    far = std::max(far, difference(sharded.gradients[i], dense.gradients[i]));
    far = std::max(far, difference(sharded.parameters[i], dense.parameters[i]));
  }
  return far;
}

}  // namespace penstock::test
