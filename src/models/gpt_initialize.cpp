// Initializes the parameters of the GPT. The values depend on seed and name, never on order or stage.
#include "base/fnv1a.h"
#include "models/name_seed.h"

#include <penstock/models/gpt.h>

#include <ATen/CPUGeneratorImpl.h>
#include <torch/torch.h>

#include <array>
#include <cmath>
#include <string_view>

namespace penstock::models {

// FNV-1a over the bytes of the seed and the name, then mixed so that similar names give unrelated values.
std::uint64_t name_seed(std::uint64_t seed, std::string_view name) {
  std::array<char, 8> seed_bytes;
  for (std::size_t i = 0; i < seed_bytes.size(); ++i) seed_bytes[i] = static_cast<char>(seed >> (8 * i));
  std::uint64_t key = fnv1a(name, fnv1a({seed_bytes.data(), seed_bytes.size()}));
  key ^= key >> 33;
  key *= 0xff51afd7ed558ccdULL;
  return key ^ (key >> 33);
}

void initialize_parameter(const at::Tensor& parameter, const std::string& name, const GptOptions& options,
                          std::uint64_t seed) {
  const torch::NoGradGuard no_grad;
  constexpr double usual = 0.02;
  // Scale down the layers that add to the residual stream, so that its variance does not grow with depth.
  const double residual =
      usual / std::sqrt(2.0 * static_cast<double>(std::max<std::int64_t>(options.layers, 1)));
  if (name.ends_with(".bias")) {
    parameter.zero_();
  } else if (name.find("norm") != std::string::npos) {
    parameter.fill_(1);
  } else {
    auto generator = at::make_generator<at::CPUGeneratorImpl>(name_seed(seed, name));
    const bool into_stream = name.ends_with(".out.weight") || name.ends_with(".down.weight");
    const double deviation = into_stream ? residual : usual;
    if (parameter.is_cpu()) {
      parameter.normal_(0.0, deviation, generator);
    } else {  // drawn on the CPU, so that every device gets the same values
      parameter.copy_(torch::empty_like(parameter, torch::kCPU).normal_(0.0, deviation, generator));
    }
  }
}

void initialize(torch::nn::Module& module, const GptOptions& options, std::uint64_t seed) {
  for (auto& item : module.named_parameters()) initialize_parameter(item.value(), item.key(), options, seed);
}

}  // namespace penstock::models
