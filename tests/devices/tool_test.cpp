// The real programs with simulated devices, which a preloaded library adds. Ranks are processes over Gloo.
#include "support/lines.h"
#include "support/program.h"

#include <penstock/checkpoint/safetensors.h>

#include <ATen/ops/allclose.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace penstock::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

Outcome with_devices(int count, std::vector<std::string> words) {
  words.insert(words.begin(), PENSTOCK_TOOL);
  return run_program(
      words, {"LD_PRELOAD=" SIMULATED_DEVICES, "PENSTOCK_SIMULATED_DEVICES=" + std::to_string(count)});
}

std::vector<std::string> small_gpt(std::vector<std::string> more) {
  std::vector<std::string> words{"train",      "--steps=4",        "--batch=4", "--seq=16",   "--layers=2",
                                 "--width=16", "--microbatches=2", "--heads=2", "--sample=10"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

std::vector<double> losses_of(const std::string& log) {
  std::vector<double> losses;
  for (const std::string& line : lines_of(slurp(log)))
    losses.push_back(nlohmann::json::parse(line)["loss"].get<double>());
  return losses;
}

// A CUDA build of libtorch ignores the preloaded library.
class DevicesTool : public testing::Test {
 protected:
  void SetUp() override {
    const Outcome outcome = penstock(small_gpt({"--dry-run", "--device=cuda"}));
    if (outcome.err.find("this libtorch has no CUDA support") == std::string::npos)
      GTEST_SKIP() << "this libtorch has a CUDA of its own";
  }
};

TEST_F(DevicesTool, TrainsOnDevices) {
  const TempDir dir;
  const Outcome host = penstock(small_gpt({"--device=cpu", "--log-json=" + (dir / "host")}));
  ASSERT_EQ(host.code, 0) << host.err;
  for (const std::string option : {"--ranks=2", "--dp=2"}) {
    const Outcome outcome =
        with_devices(2, small_gpt({option, "--device=cuda", "--log-json=" + (dir / "device")}));
    ASSERT_EQ(outcome.code, 0) << option << outcome.err;
    EXPECT_THAT(outcome.out,
                AllOf(HasSubstr("device = \"cuda\"\n"), HasSubstr("device: cuda, as requested\n")));
    EXPECT_THAT(losses_of(dir / "device"),
                testing::Pointwise(testing::DoubleNear(1e-5), losses_of(dir / "host")));
  }
}

TEST_F(DevicesTool, AutoTakesDevicesIfThereAreEnough) {
  const Outcome enough = with_devices(4, small_gpt({"--ranks=2", "--device=auto"}));
  EXPECT_EQ(enough.code, 0) << enough.err;
  EXPECT_THAT(enough.out,
              AllOf(HasSubstr("device = \"cuda\"\n"),
                    HasSubstr("device: cuda, because this machine has 4 CUDA devices for 2 ranks\n")));
  const Outcome few = with_devices(1, small_gpt({"--ranks=2"}));
  EXPECT_EQ(few.code, 0) << few.err;
  EXPECT_THAT(few.out,
              HasSubstr("device: cpu, because 2 ranks need a CUDA device each, and this machine has 1\n"));
}

TEST_F(DevicesTool, RefusesMoreRanksThanDevices) {
  for (const std::string more : {"--log-every=1", "--dry-run"}) {
    const Outcome outcome = with_devices(1, small_gpt({"--ranks=2", "--device=cuda", more}));
    EXPECT_EQ(outcome.code, 2);
    EXPECT_THAT(outcome.err,
                AllOf(HasSubstr("--device cuda: 2 ranks need a CUDA device each, and this machine has 1"),
                      HasSubstr("at most 1 rank on this machine")));
    EXPECT_EQ(outcome.out, "");
  }
}

TEST_F(DevicesTool, DryRunShowsDevice) {
  const Outcome text = with_devices(2, small_gpt({"--ranks=2", "--device=cuda", "--dry-run"}));
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_THAT(text.out, HasSubstr("backend shm, device cuda\n"));
  const Outcome json = with_devices(2, small_gpt({"--ranks=2", "--device=cuda", "--dry-run", "--json"}));
  EXPECT_EQ(nlohmann::json::parse(json.out)["topology"]["device"], "cuda");
}

TEST_F(DevicesTool, EvaluatesOnDevices) {
  const TempDir dir;
  const std::string archives = PENSTOCK_SOURCE_DIR "/tests/train/archives/";
  const std::vector<std::string> eval{"eval", archives + "language.pt2",
                                      "--input=" + archives + "language.safetensors"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), eval.begin(), eval.end());
    return more;
  };
  const Outcome host = penstock(with({"--output=" + (dir / "host.safetensors")}));
  ASSERT_EQ(host.code, 0) << host.err;
  for (const std::string ranks : {"--ranks=1", "--ranks=2", "--tp=2"}) {
    const Outcome outcome =
        with_devices(2, with({ranks, "--device=cuda", "--output=" + (dir / "device.safetensors")}));
    ASSERT_EQ(outcome.code, 0) << ranks << outcome.err;
    EXPECT_THAT(outcome.out, HasSubstr("device: cuda, as requested\n"));
    const auto expected = checkpoint::load_safetensors(dir / "host.safetensors");
    const auto outputs = checkpoint::load_safetensors(dir / "device.safetensors");
    ASSERT_EQ(outputs.size(), expected.size());
    for (const auto& [name, tensor] : expected)
      EXPECT_TRUE(at::allclose(outputs.at(name), tensor, 1e-4, 1e-5)) << name;
  }
}

}  // namespace
}  // namespace penstock::test
