// The test of fault_test.cpp, repeated many times.
#include "runtime/support/kill.h"

#include <gtest/gtest.h>

namespace penstock::test {
namespace {

TEST(RuntimeKilledRank, IsReportedByOtherRanksWithinFiveSeconds50Times) {
  kill_at_random(50, 2);
}

}  // namespace
}  // namespace penstock::test
