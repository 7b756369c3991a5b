// The precompiled header of tests and examples that use torch::nn and the optimizers. Examples need no
// GoogleTest.
#pragma once

#include <torch/torch.h>
#if __has_include(<gmock/gmock.h>)
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#endif
