// `penstock eval` and `inspect` of a GPT that was trained by the tool, compared with a dense run in this
// process.
#include "support/program.h"

#include <penstock/checkpoint/safetensors.h>
#include <penstock/models/gpt.h>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace penstock::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(ToolTrainedGpt, EvalMatchesDenseRun) {
  const TempDir dir;
  const std::string run = "--checkpoint=" + dir / "run";
  const Outcome trained = penstock({"train", "--steps=3", "--layers=3", "--width=16", "--heads=2", "--seq=8",
                                    "--batch=8", "--ranks=2", "--sample=0", "--feed-forward=swiglu", run});
  ASSERT_EQ(trained.code, 0) << trained.err;
  ASSERT_EQ(penstock({"checkpoint", "convert", dir / "run", dir / "w.safetensors"}).code, 0);
  const auto weights = checkpoint::load_safetensors(dir / "w.safetensors");
  models::Gpt model(models::GptOptions{.vocabulary = weights.at("token.weight").size(0),
                                       .context = 8,
                                       .layers = 3,
                                       .heads = 2,
                                       .width = 16,
                                       .feed_forward = models::FeedForwardKind::SwiGlu});
  const at::NoGradGuard no_grad;
  for (auto& item : model->named_parameters()) item.value().copy_(weights.at(item.key()));
  for (const std::int64_t length : {8, 5}) {
    const at::Tensor tokens =
        at::arange(6 * length).reshape({6, length}).remainder(weights.at("token.weight").size(0));
    checkpoint::save_safetensors(dir / "in.safetensors", {{"tokens", tokens}});
    for (const std::string ranks : {"--pp=1", "--pp=2"}) {
      const Outcome outcome = penstock({"eval", run, "--input", dir / "in.safetensors", "--output",
                                        dir / "out.safetensors", ranks, "--microbatches=2"});
      ASSERT_EQ(outcome.code, 0) << outcome.err;
      const at::Tensor logits = checkpoint::load_safetensors(dir / "out.safetensors").at("output");
      EXPECT_TRUE(at::allclose(logits, model->forward(tokens), 1e-5, 1e-6)) << ranks << " " << length;
    }
  }
  const Outcome shown = penstock({"inspect", run, "--stages=2"});
  EXPECT_EQ(shown.code, 0) << shown.err;
  EXPECT_THAT(shown.out, AllOf(HasSubstr("stage 1"), HasSubstr("blocks.2")));
  checkpoint::save_safetensors(dir / "in.safetensors", {{"tokens", at::zeros({2, 9}, at::kLong)}});
  const Outcome refused =
      penstock({"eval", run, "--input", dir / "in.safetensors", "--output", dir / "out.safetensors"});
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, HasSubstr("the GPT needs rows of 1 to 8 tokens"));
  const Outcome nothing = penstock({"inspect"});
  EXPECT_EQ(nothing.code, 2);
  EXPECT_THAT(nothing.err, HasSubstr("there is no model"));
}

}  // namespace
}  // namespace penstock::test
