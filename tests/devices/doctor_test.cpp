// `penstock doctor` on simulated devices, with a stand-in for the library of NVIDIA's driver.
#include "preloaded.h"

namespace penstock::test {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

class DevicesDoctor : public DevicesTool {};

TEST_F(DevicesDoctor, DescribesDevices) {
  const Outcome outcome = with_devices(2, {"doctor"});
  EXPECT_EQ(outcome.code, 0) << outcome.out;
  EXPECT_THAT(outcome.out,
              AllOf(ContainsRegex("ok +devices +2 CUDA devices\n"),
                    ContainsRegex("ok +cuda:0 +[0-9.]+ .iB of 4.00 GiB free\n"),
                    ContainsRegex("ok +cuda:1 +[0-9.]+ .iB of 4.00 GiB free\n"),
                    ContainsRegex("ok +rank devices +local ranks 0 to 1 compute on cuda:0 to cuda:1\n"),
                    HasSubstr("; auto means shm, because penstock was built without NCCL"),
                    ContainsRegex("ok +round trip +2 ranks over "), Not(HasSubstr("peer access"))));
}

// The stand-in has no peer access between devices 0 and 2.
TEST_F(DevicesDoctor, AsksDriver) {
  const std::string driver = "LD_LIBRARY_PATH=" DRIVER_FOLDER;
  EXPECT_THAT(with_devices(2, {"doctor"}, {driver}).out,
              AllOf(ContainsRegex("ok +cuda:1 +Stand-in 1, [0-9.]+ .iB of 4.00 GiB free\n"),
                    ContainsRegex("ok +peer access +between all devices\n")));
  EXPECT_THAT(with_devices(3, {"doctor"}, {driver}).out,
              ContainsRegex("note +peer access +not between cuda:0 and cuda:2; copies between them go "
                            "through host memory\n"));
}

TEST_F(DevicesDoctor, NamesDeviceOfLaunchedRank) {
  const std::vector<std::string> world{"RANK=1", "WORLD_SIZE=2", "MASTER_ADDR=localhost",
                                       "MASTER_PORT=29500"};
  const auto found = [&](const std::string& local) {
    std::vector<std::string> environment = world;
    environment.push_back("LOCAL_RANK=" + local);
    return with_devices(2, {"doctor"}, environment).out;
  };
  EXPECT_THAT(found("1"), HasSubstr("this process is local rank 1 and computes on cuda:1\n"));
  EXPECT_THAT(found("5"), ContainsRegex("BAD +rank devices +local rank 5 has no device"));
}

}  // namespace
}  // namespace penstock::test
