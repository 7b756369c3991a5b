// 200 random faults, in four cases that can be run separately.
#include "tools/train/fault_injection.h"

#include <gtest/gtest.h>

namespace penstock::test {
namespace {

class ToolTrainFaultSoak : public testing::TestWithParam<unsigned> {};

TEST_P(ToolTrainFaultSoak, FiftyFaultsDoNotChangeLosses) {
  soak(GetParam(), 10, 5);
}

INSTANTIATE_TEST_SUITE_P(TwoHundred, ToolTrainFaultSoak,
                         testing::Values(20261116U, 20261117U, 20261118U, 20261119U),
                         testing::PrintToStringParamName());

}  // namespace
}  // namespace penstock::test
