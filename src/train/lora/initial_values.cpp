// Draws the initial values of adapters.
#include "train/lora/initial_values.h"

#include "models/name_seed.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <cmath>

namespace penstock::train {

void initialize_adapter(at::Tensor a, const std::string& name, std::uint64_t seed) {
  if (a.is_meta()) return;
  const at::NoGradGuard no_grad;
  auto generator = at::make_generator<at::CPUGeneratorImpl>(models::name_seed(seed, name));
  const double bound = 1 / std::sqrt(static_cast<double>(a.size(1)));
  const auto on_cpu = at::TensorOptions(at::kFloat).device(at::kCPU);
  a.copy_(at::empty(a.sizes(), on_cpu).uniform_(-bound, bound, generator));
}

}  // namespace penstock::train
