// The precompiled header of tests and examples that use torch::nn and the optimizers.
#pragma once

#include <torch/torch.h>
