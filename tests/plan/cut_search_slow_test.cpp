// The planner's cuts against a local search, over two thousand random models.
#include "cut_problems.h"

namespace penstock {
namespace {

TEST(CutSearchSweep, IsNeverWorseThanALocalSearch) {
  test::expect_no_worse_than_local_search(1000, 3000);
}

}  // namespace
}  // namespace penstock
