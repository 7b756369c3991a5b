// 200 random faults, and the whole matrix of kinds, moments and ranks.
#include "faults.h"

#include <gtest/gtest.h>

namespace penstock::test {
namespace {

TEST(Soak, TwoHundredFaultsChangeNothing) {
  soak(20261116, 40, 5);
}

}  // namespace
}  // namespace penstock::test
