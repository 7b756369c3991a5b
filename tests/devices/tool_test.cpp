// `penstock train` and `eval` on simulated devices: the device that a run uses, and its losses and outputs.
#include "preloaded.h"

#include <penstock/checkpoint/safetensors.h>

#include <ATen/ops/allclose.h>

#include <algorithm>

namespace penstock::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

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

// The output of a dry run of a model that needs hundreds of megabytes, on devices with this many bytes.
std::string dry_run_with_memory(std::uint64_t bytes, std::vector<std::string> more) {
  more.insert(more.begin(), {"train", "--ranks=2", "--device=cuda", "--dry-run", "--layers=8", "--width=512",
                             "--batch=64", "--microbatches=16"});
  const Outcome outcome = with_devices(2, more, {"PENSTOCK_SIMULATED_MEMORY=" + std::to_string(bytes)});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  return outcome.out;
}

constexpr std::uint64_t kGibibyte = std::uint64_t{1} << 30U;

TEST_F(DevicesTool, DryRunWarnsOfTooLittleMemory) {
  EXPECT_THAT(dry_run_with_memory(kGibibyte / 8, {}),
              AllOf(HasSubstr(", but its device has 128 MiB"), HasSubstr("Use more ranks")));
  EXPECT_THAT(dry_run_with_memory(4 * kGibibyte, {}), testing::Not(HasSubstr("but its device has")));
}

// The generated schedule keeps fewer activations if the device is small.
TEST_F(DevicesTool, DryRunPlansForMemoryOfDevice) {
  const auto peaks = [](std::uint64_t bytes) {
    std::vector<std::uint64_t> found;
    const auto run = nlohmann::json::parse(dry_run_with_memory(bytes, {"--schedule=auto", "--json"}));
    for (const auto& rank : run.at("ranks")) found.push_back(rank.at("peak_memory").get<std::uint64_t>());
    return found;
  };
  const std::vector<std::uint64_t> free = peaks(4 * kGibibyte);
  const std::uint64_t less = *std::max_element(free.begin(), free.end()) - 1;
  EXPECT_THAT(peaks(less), testing::Each(testing::Le(less)));
}

TEST_F(DevicesTool, MeasuresCostsOnDevice) {
  const std::string archives = PENSTOCK_SOURCE_DIR "/tests/train/archives/";
  const Outcome outcome = with_devices(
      1, {"costs", archives + "mlp.pt2", "--input=" + archives + "mlp.safetensors", "--device=cuda"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("of one microbatch, measured on cuda."), HasSubstr("[[layers]]")));
  const Outcome refused = with_devices(1, {"costs", archives + "mlp.pt2", "--device=cuda"});
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, HasSubstr("--device requires --input"));
}

// Without memory on the device, a measurement fails there.
TEST_F(DevicesTool, InspectsAndPlansWithTimesOfDevice) {
  const std::string archives = PENSTOCK_SOURCE_DIR "/tests/train/archives/";
  const std::string model = archives + "mlp.pt2", input = "--input=" + archives + "mlp.safetensors";
  const std::vector<std::string> none{"PENSTOCK_SIMULATED_MEMORY=1"};
  const std::vector<std::vector<std::string>> commands{
      {"inspect", model, input, "--as=profile"},
      {"inspect", model, input, "--balance=time", "--stages=2"},
      {"plan", "--model=" + model, input, "--ranks=2", "--microbatches=2", "--schedules=1F1B"}};
  for (std::vector<std::string> words : commands) {
    SCOPED_TRACE(words[0] + " " + words[3]);
    EXPECT_EQ(with_devices(1, words, none).code, 0);  // on the CPU
    words.emplace_back("--device=cuda");
    const Outcome outcome = with_devices(1, words);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    const Outcome refused = with_devices(1, words, none);
    EXPECT_NE(refused.code, 0);
    EXPECT_THAT(refused.err, HasSubstr("out of memory"));
    EXPECT_THAT(penstock(words).err, HasSubstr("no CUDA support"));
  }
  EXPECT_THAT(with_devices(1, {"inspect", model, input, "--as=profile", "--device=cuda"}).out,
              HasSubstr("measured on cuda\n"));
  const Outcome plan = with_devices(1, {"plan", "--model=" + model, input, "--device=cuda", "--ranks=2",
                                        "--microbatches=2", "--schedules=1F1B"});
  EXPECT_THAT(plan.out, testing::ContainsRegex("penstock train .* --device cuda"));
  const Outcome unused = with_devices(1, {"inspect", model, "--device=cuda"});
  EXPECT_EQ(unused.code, 2);
  EXPECT_THAT(unused.err, HasSubstr("--device requires --balance time or --as profile"));
}

// The command measures before the ranks start, where it has the device.
TEST_F(DevicesTool, EvaluationBalancesByTimesOfDevice) {
  const TempDir dir;
  const std::string archives = PENSTOCK_SOURCE_DIR "/tests/train/archives/";
  std::vector<std::string> eval{"eval",
                                archives + "language.pt2",
                                "--input=" + archives + "language.safetensors",
                                "--output=" + (dir / "outputs.safetensors"),
                                "--ranks=2",
                                "--stages=2",
                                "--device=cuda"};
  const std::vector<std::string> none{"PENSTOCK_SIMULATED_MEMORY=1"};
  EXPECT_THAT(with_devices(2, eval, none).err, HasSubstr("rank "));  // a rank has no memory
  eval.emplace_back("--balance=time");
  const Outcome refused = with_devices(2, eval, none);
  EXPECT_THAT(refused.err, AllOf(HasSubstr("out of memory"), testing::Not(HasSubstr("rank "))));
  EXPECT_EQ(with_devices(2, eval).code, 0);
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
