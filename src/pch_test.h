// The precompiled header of tests on libtorch that use no torch::nn.
#pragma once

#include "pch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
