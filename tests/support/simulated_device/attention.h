// Attention: CUDA's fused operators, computed by the fused operators of the CPU.
#pragma once

#include <torch/library.h>

namespace penstock::test::simulated {

void add_attention_kernels(torch::Library& aten);

}  // namespace penstock::test::simulated
