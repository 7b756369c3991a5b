// Initial values of adapters: those of PEFT in distribution, seeded like all other initial values.
#pragma once

#include <penstock/train/lora.h>

#include <ATen/core/Tensor.h>

namespace penstock::train {

//! Fills A with values that are uniform in ±1/sqrt(inputs) (Kaiming's initialization with a = sqrt(5)). The
//! values depend only on the seed and the name, on every device. Does nothing on the meta device.
void initialize_adapter(at::Tensor a, const std::string& name, std::uint64_t seed);

}  // namespace penstock::train
