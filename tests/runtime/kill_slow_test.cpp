// The same as in fault_test.cpp, many more times.
#include "runtime/support/kill.h"

#include <gtest/gtest.h>

namespace penstock::test {
namespace {

TEST(RuntimeKilledRank, IsReportedByOtherRanksWithinFiveSeconds50Times) {
  kill_at_random(50, 2);
}

}  // namespace
}  // namespace penstock::test
