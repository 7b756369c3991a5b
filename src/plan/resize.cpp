// Scales the costs of a stage with the size of its microbatches.
#include "plan/resize.h"

#include <penstock/base/error.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace penstock::plan {

StageCosts resize(StageCosts costs, double ratio, double overhead) {
  const auto time = [&](double& t) { t = std::min(t, overhead) + std::max(0.0, t - overhead) * ratio; };
  const auto bytes = [&](std::uint64_t& b) {
    const double resized = std::ceil(static_cast<double>(b) * ratio);
    if (!(resized < 0x1p63)) throw UsageError("the bytes of a microbatch of this size overflow 63 bits");
    b = static_cast<std::uint64_t>(resized);
  };
  time(costs.forward);
  time(costs.input);
  time(costs.weight);
  if (costs.backward) time(*costs.backward);
  bytes(costs.activation_bytes);
  bytes(costs.weight_bytes);
  bytes(costs.output_bytes);
  bytes(costs.input_bytes);
  return costs;
}

}  // namespace penstock::plan
