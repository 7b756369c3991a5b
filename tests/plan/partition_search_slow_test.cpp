// The planner's partitions compared with a local search, over two thousand random models.
#include "partition_problems.h"

namespace penstock::plan {
namespace {

TEST(PlanPartitionSearchSweep, IsNeverWorseThanLocalSearch) {
  test::expect_no_worse_than_local_search(1000, 3000);
}

}  // namespace
}  // namespace penstock::plan
