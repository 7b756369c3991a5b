// The results of a short training, and the difference between two of them.
#pragma once

#include "tensor/ranks.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace penstock::test {

struct Trained {
  at::Tensor output;  //!< of the first step; optional
  std::vector<double> losses;
  std::vector<at::Tensor> gradients, parameters;
};

//! The difference between a run with sharded parameters and a dense run.
inline double distance(const Trained& cut, const Trained& alone) {
  double far = alone.output.defined() ? difference(cut.output, alone.output) : 0;
  for (std::size_t i = 0; i < alone.losses.size(); ++i)
    far = std::max(far, std::abs(cut.losses[i] - alone.losses[i]));
  for (std::size_t i = 0; i < alone.parameters.size(); ++i) {
    far = std::max(far, difference(cut.gradients[i], alone.gradients[i]));
    far = std::max(far, difference(cut.parameters[i], alone.parameters[i]));
  }
  return far;
}

}  // namespace penstock::test
