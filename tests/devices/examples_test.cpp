// The examples on simulated devices: the output of the CPU.
#include "support/program.h"

#include <penstock/checkpoint/safetensors.h>

#include <ATen/core/Tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace penstock::test {
namespace {

const std::vector<std::string> kDevices{"LD_PRELOAD=" SIMULATED_DEVICES, "PENSTOCK_SIMULATED_DEVICES=8"};

Outcome example(const std::string& name, std::vector<std::string> arguments,
                const std::vector<std::string>& environment = {}) {
  arguments.insert(arguments.begin(), PENSTOCK_EXAMPLES "/example_" + name);
  return run_program(arguments, environment);
}

//! What comes before the device. Writes data to `dir`.
std::vector<std::string> arguments_of(const std::string& name, const TempDir& dir) {
  if (name == "train_exported") return {PENSTOCK_SOURCE_DIR "/examples/exported"};
  if (name != "fine_tune") return {};
  const std::string archive = PENSTOCK_SOURCE_DIR "/tests/train/archives/mlp";
  auto data = checkpoint::load_safetensors(archive + ".safetensors");
  data["target"] = data.at("target").argmax(-1);
  checkpoint::save_safetensors(dir / "data.safetensors", data);
  return {archive + ".pt2", dir / "data.safetensors", dir / "out.pt"};
}

class DevicesExamples : public testing::TestWithParam<std::string> {
 protected:
  // A CUDA build of libtorch ignores the preloaded library.
  void SetUp() override {
    if (example("ddp", {"cuda"}).err.find("this libtorch has no support") == std::string::npos)
      GTEST_SKIP() << "this libtorch has a CUDA of its own";
  }
};

TEST_P(DevicesExamples, PrintsOutputOfCpu) {
  const TempDir dir;
  const std::string name = GetParam();
  const std::vector<std::string> before = arguments_of(name, dir);
  std::vector<std::string> on_device = before;
  on_device.emplace_back("cuda");
  const Outcome host = example(name, before), device = example(name, on_device, kDevices);
  ASSERT_EQ(host.code, 0) << host.err;
  ASSERT_EQ(device.code, 0) << device.err;
  EXPECT_FALSE(host.out.empty());
  EXPECT_EQ(device.out, host.out);
}

INSTANTIATE_TEST_SUITE_P(All, DevicesExamples,
                         testing::Values("actor_learner", "ddp", "fine_tune", "images", "mlp_pipeline",
                                         "sharded", "tensor_parallel", "three_d", "train_exported"),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace penstock::test
