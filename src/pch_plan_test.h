// The precompiled header of the tests of the torch-free half.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
