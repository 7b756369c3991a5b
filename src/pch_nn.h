// The precompiled header for tests and examples that use torch::nn and the optimizers.
#pragma once

#include <torch/torch.h>
