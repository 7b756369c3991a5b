// `penstock train` and `generate` on simulated devices with every kind of parallelism, precision and data:
// the losses of the same run on the CPU.
#include "preloaded.h"

#include <filesystem>
#include <fstream>

namespace penstock::test {
namespace {

using Words = std::vector<std::string>;

constexpr int kClasses = 17;  // of language.pt2

const std::string kArchives = PENSTOCK_SOURCE_DIR "/tests/train/archives/";

Words joined(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

class DevicesToolOptions : public DevicesTool {
 protected:
  std::vector<double> host(const Words& words) {
    const std::string log = dir_ / "host.json";
    std::filesystem::remove(log);
    const Outcome outcome = penstock(joined(words, {"--device=cpu", "--log-json=" + log, "--quiet"}));
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return losses_of(log);
  }

  std::vector<double> device(const Words& words) {
    const std::string log = dir_ / "device.json";
    std::filesystem::remove(log);
    const Outcome outcome = with_devices(4, joined(words, {"--device=cuda", "--log-json=" + log, "--quiet"}));
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return losses_of(log);
  }

  static void expect_near(const std::vector<double>& losses, const std::vector<double>& expected,
                          double relative = 1e-5) {
    ASSERT_EQ(losses.size(), expected.size());
    for (std::size_t i = 0; i < losses.size(); ++i)
      EXPECT_NEAR(losses[i], expected[i], relative * expected[i]) << "step " << i + 1;
  }

  TempDir dir_;
};

TEST_F(DevicesToolOptions, TensorParallelWithRecomputation) {
  expect_near(device(small_gpt({"--pp=2", "--tp=2", "--schedule=ZB1P", "--recompute", "--grad-clip=0.5"})),
              host(small_gpt({"--ranks=1", "--grad-clip=0.5"})));
}

TEST_F(DevicesToolOptions, ShardingAndCheckpoints) {
  const std::vector<double> expected = host(small_gpt({"--ranks=1"}));
  const std::string saved = "--checkpoint=" + dir_ / "saved";
  const std::vector<double> first =
      device(small_gpt({"--dp=2", "--sharding=full", saved, "--checkpoint-every=2"}));
  expect_near(first, expected);
  std::filesystem::remove_all(dir_ / "saved/step-00000004");
  for (const std::string sharding : {"optimizer", "gradients"}) {
    SCOPED_TRACE(sharding);
    const std::vector<double> rest =
        device(small_gpt({"--dp=2", "--pp=2", "--sharding=" + sharding, saved, "--resume"}));
    expect_near(rest, {expected.begin() + 2, expected.end()});
    std::filesystem::remove_all(dir_ / "saved/step-00000004");
  }
}

TEST_F(DevicesToolOptions, ReducedPrecision) {
  const std::vector<double> exact = host(small_gpt({"--ranks=1"}));
  for (const Words& words : {Words{"--dp=2", "--precision=bf16", "--param-dtype=bf16"},
                             Words{"--pp=2", "--precision=fp16", "--loss-scale=1024"}}) {
    SCOPED_TRACE(words[1]);
    const std::vector<double> losses = device(small_gpt(words));
    EXPECT_NE(losses, exact);
    expect_near(losses, host(small_gpt(words)), 0.01);
  }
}

// The masks are those of the device's generator.
TEST_F(DevicesToolOptions, Dropout) {
  const std::vector<double> expected = device(small_gpt({"--pp=2", "--dropout=0.2"}));
  expect_near(device(small_gpt({"--pp=2", "--dropout=0.2", "--schedule=ZB1P", "--recompute"})), expected);
  EXPECT_NE(host(small_gpt({"--ranks=1"})), expected);
}

TEST_F(DevicesToolOptions, ArchivesWithClassWeightsAndAdapters) {
  const Words train{
      "train",     kArchives + "language.pt2", "--data=" + kArchives + "language.safetensors", "--batch=8",
      "--steps=4", "--microbatches=2"};
  std::string weights = "--class-weights=2";
  for (int i = 1; i < kClasses; ++i) weights += ",1";
  const std::string lora = "--lora=layers.*.up,layers.1.down";
  expect_near(device(joined(train, {"--pp=2", "--dp=2", weights, lora})),
              host(joined(train, {"--ranks=1", weights, lora})));
}

TEST_F(DevicesToolOptions, PackedDocuments) {
  std::ofstream tokens(dir_ / "tokens.bin", std::ios::binary);
  for (int i = 0; i < 300; ++i) tokens.put(static_cast<char>((i * i + i / 5) % 11)).put(0);
  tokens.close();
  const Words train{"train",
                    kArchives + "packed.pt2",
                    "--data=" + dir_ / "tokens.bin",
                    "--document-separator=4",
                    "--batch=8",
                    "--steps=4",
                    "--microbatches=2"};
  expect_near(device(joined(train, {"--pp=2"})), host(joined(train, {"--ranks=1"})));
}

TEST_F(DevicesToolOptions, Generates) {
  const std::string saved = dir_ / "saved";
  device(small_gpt({"--pp=2", "--checkpoint=" + saved}));
  const Words generate{"generate", "--checkpoint=" + saved, "--prompt=the", "--max-tokens=12"};
  for (const Words& how : {Words{"--greedy"}, Words{"--temperature=1.1", "--seed=3", "--pp=2"}}) {
    const Outcome expected = penstock(joined(generate, joined(how, {"--device=cpu"})));
    const Outcome outcome = with_devices(2, joined(generate, joined(how, {"--device=cuda"})));
    EXPECT_EQ(expected.code, 0) << expected.err;
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_FALSE(expected.out.empty());
    EXPECT_EQ(outcome.out, expected.out);
  }
}

}  // namespace
}  // namespace penstock::test
