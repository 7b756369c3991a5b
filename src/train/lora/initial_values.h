// Initial values of adapters: those of PEFT in distribution, seeded like all other initial values.
#pragma once

#include <penstock/train/lora.h>

#include <ATen/core/Tensor.h>

namespace penstock::train {

//! The name of the factor that does not start as 0: A of a linear layer, B of an embedding.
std::string drawn_factor(const AdaptedLayer& layer);

//! Fills that factor: for a linear layer with values that are uniform in ±1/sqrt(inputs) (Kaiming's
//! initialization with a = sqrt(5)), for an embedding with the standard normal distribution. The values
//! depend only on the seed and the name, on every device. Does nothing on the meta device.
void initialize_adapter(const at::Tensor& factor, const AdaptedLayer& layer, std::uint64_t seed);

}  // namespace penstock::train
