// Draws the initial values of adapters.
#include "train/lora/initial_values.h"

#include "models/name_seed.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <cmath>

namespace penstock::train {

std::string drawn_factor(const AdaptedLayer& layer) {
  return layer.embedding ? layer.b() : layer.a();
}

void initialize_adapter(const at::Tensor& factor, const AdaptedLayer& layer, std::uint64_t seed) {
  if (factor.is_meta()) return;
  const at::NoGradGuard no_grad;
  auto generator = at::make_generator<at::CPUGeneratorImpl>(models::name_seed(seed, drawn_factor(layer)));
  const at::Tensor values = at::empty(factor.sizes(), at::TensorOptions(at::kFloat).device(at::kCPU));
  if (layer.embedding) {
    values.normal_(0, 1, generator);
  } else {
    const double bound = 1 / std::sqrt(static_cast<double>(factor.size(1)));
    values.uniform_(-bound, bound, generator);
  }
  factor.copy_(values);
}

}  // namespace penstock::train
