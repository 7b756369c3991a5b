// `penstock train --init` through the real binaries, compared with a training loop in Python that starts from
// the same weights.
#include "support/program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

namespace penstock::test {
namespace {

using testing::HasSubstr;

const std::string kScript = PENSTOCK_SOURCE_DIR "/tests/tools/train/initial_weights.py";

TEST(ToolTrainInit, MatchesPythonFromHuggingFaceFiles) {
  const char* given = std::getenv("PENSTOCK_PYTHON");
  const std::string interpreter = given != nullptr && *given != '\0' ? given : "python3";
  const TempDir dir;
  const Outcome made = run_program({interpreter, kScript, "make", dir.path()});
  if (made.code == 77) GTEST_SKIP() << "this Python lacks torch, numpy or safetensors";
  ASSERT_EQ(made.code, 0) << made.err;
  const auto train = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"train", dir / "model.pt2", "--data", dir / "data.safetensors", "--no-shuffle",
                               "--batch=8", "--steps=4", "--optimizer=sgd", "--lr=0.2", "--microbatches=2"});
    return penstock(more);
  };
  const std::string init = "--init=" + dir / "hf", rename = "--init-rename=model=,layers.*=blocks.*";
  std::vector<std::string> check{interpreter, kScript, "check", dir.path()};
  int number = 0;
  for (const std::vector<std::string>& topology :
       std::vector<std::vector<std::string>>{{"--pp=1"}, {"--pp=2", "--dp=2", "--sharding=full"}}) {
    check.push_back(dir / ("log" + std::to_string(number++)));
    std::vector<std::string> words{init, rename, "--log-json=" + check.back()};
    words.insert(words.end(), topology.begin(), topology.end());
    const Outcome trained = train(words);
    EXPECT_EQ(trained.code, 0) << trained.err;
    EXPECT_THAT(trained.out, HasSubstr("initial weights from " + dir / "hf"));
  }
  EXPECT_EQ(run_program(check).out, "agrees\n");

  // Everything that does not match is listed in one message, before ranks start.
  const Outcome refused = train({init, "--pp=2"});
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, HasSubstr("missing in the weights (19)"));
  EXPECT_THAT(refused.err, HasSubstr("in the weights but not in the model (19)"));
  EXPECT_THAT(refused.err, HasSubstr("model.layers.2.down.weight"));
  EXPECT_THAT(refused.err, testing::AllOf(HasSubstr("rename rules for the initial weights"),
                                          testing::Not(HasSubstr("checkpoint"))));
  const Outcome nothing = train({init, "--pp=2", "--init-partly"});
  EXPECT_EQ(nothing.code, 2);
  EXPECT_THAT(nothing.err, HasSubstr("matches the model"));
  const Outcome some = train({init, "--init-rename=model=", "--pp=1", "--init-partly"});
  EXPECT_EQ(some.code, 0) << some.err;
  EXPECT_THAT(some.out, HasSubstr("in the weights but not in the model: layers.0.down.bias, "));
}

TEST(ToolTrainInit, ReportsInvalidOptions) {
  const TempDir dir;
  const auto expect = [](const std::vector<std::string>& more, const std::string& text) {
    std::vector<std::string> words{"train", "--steps=1", "--ranks=1"};
    words.insert(words.end(), more.begin(), more.end());
    const Outcome refused = penstock(words);
    EXPECT_EQ(refused.code, 2);
    EXPECT_THAT(refused.err, HasSubstr(text));
  };
  expect({"--init-partly"}, "--init-partly needs --init");
  expect({"--init-rename=a=b"}, "--init-rename needs --init");
  expect({"--init=" + dir.path(), "--init-rename=a"},
         "--init-rename: the rename rule 'a' is not of the form");
  expect({"--init=" + dir / "none"}, "there are no weights at");
}

}  // namespace
}  // namespace penstock::test
