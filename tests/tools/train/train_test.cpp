// `penstock train` as users call it: with processes, through the real binaries.
#include "support/lines.h"
#include "support/program.h"

#include <penstock/checkpoint/safetensors.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <regex>

namespace penstock::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

// A run of a few seconds; later options take precedence.
std::vector<std::string> small(std::vector<std::string> more) {
  std::vector<std::string> words{"train",     "--steps=4", "--layers=2", "--width=16",
                                 "--heads=2", "--seq=8",   "--batch=8",  "--sample=20"};
  for (const std::string& word : more) {
    const std::string name = word.substr(0, word.find('='));
    std::erase_if(words, [&](const std::string& old) { return old.starts_with(name + "="); });
  }
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

// The value of a field, as text.
std::string field(const std::string& json, const std::string& name) {
  const auto at = json.find("\"" + name + "\":");
  if (at == std::string::npos) return "";
  const auto from = at + name.size() + 3;
  return json.substr(from, json.find_first_of(",}", from) - from);
}

TEST(ToolTrain, WritesRequestedFiles) {
  const TempDir dir;
  const Outcome outcome =
      penstock(small({"--log-json=" + (dir / "log"), "--timeline=" + (dir / "t.html"),
                      "--trace=" + (dir / "t.json"), "--profile=" + (dir / "costs.toml")}));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(
      outcome.out,
      AllOf(HasSubstr("steps = 4\n"), HasSubstr("step 4/4  loss "), HasSubstr("sample of generated text:\n"),
            HasSubstr("timeline: " + (dir / "t.html")), testing::Not(HasSubstr("\x1e"))));
  const auto log = lines_of(slurp(dir / "log"));
  ASSERT_EQ(log.size(), 4U);
  for (const char* name : {"loss", "grad_norm", "seconds", "tokens_per_second", "bubble"})
    EXPECT_NE(field(log[3], name), "") << name;
  EXPECT_THAT(log[3], AllOf(StartsWith("{\"step\":4,"), HasSubstr("\"peak_memory\":[")));
  EXPECT_LT(std::stod(field(log[3], "loss")), std::stod(field(log[0], "loss")));
  EXPECT_THAT(slurp(dir / "t.html"), AllOf(HasSubstr("<html"), HasSubstr("measured"), HasSubstr("redicted")));
  // The trace: both steps, arrows between sends and receives, and counters of memory.
  EXPECT_THAT(slurp(dir / "t.json"),
              AllOf(HasSubstr("traceEvents"), HasSubstr("rank 1 (predicted)"), HasSubstr("rank 1 (measured)"),
                    HasSubstr("\"ph\":\"s\""), HasSubstr("\"ph\":\"f\""), HasSubstr("\"ph\":\"C\"")));
  // The planner accepts the measured costs.
  const Outcome plan =
      penstock({"plan", "--ranks", "2", "--microbatches", "4", "--costs", dir / "costs.toml"});
  EXPECT_EQ(plan.code, 0) << plan.err;
  EXPECT_THAT(plan.out, HasSubstr("1F1B"));
}

TEST(ToolTrain, WritesUnnamedFilesToOutputDirectory) {
  const TempDir dir;
  const Outcome outcome = penstock(small({"--output=" + (dir / "a/b"), "--sample=0"}));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("checkpoint: " + (dir / "a/b/checkpoint/step-00000004")),
                                 HasSubstr("timeline: " + (dir / "a/b/timeline.html"))));
  EXPECT_EQ(lines_of(slurp(dir / "a/b/log.jsonl")).size(), 4U);
  // A second run in this directory would mix two loss curves.
  const Outcome again = penstock(small({"--output=" + (dir / "a/b"), "--sample=0"}));
  EXPECT_EQ(again.code, 2);
  EXPECT_THAT(again.err, AllOf(HasSubstr("contains checkpoints of an earlier run"), HasSubstr("resume")));
}

TEST(ToolTrain, RunsWithSameSeedAreBitwiseEqual) {
  const TempDir dir;
  std::vector<std::vector<std::string>> losses;
  for (const char* name : {"a", "b"}) {
    ASSERT_EQ(penstock(small({"--log-json=" + (dir / name), "--json"})).code, 0);
    losses.emplace_back();
    for (const std::string& line : lines_of(slurp(dir / name))) losses.back().push_back(field(line, "loss"));
  }
  EXPECT_EQ(losses[0].size(), 4U);
  EXPECT_EQ(losses[0], losses[1]);
}

// The losses in a log.
std::vector<double> losses_of(const std::string& log) {
  std::vector<double> losses;
  for (const std::string& line : lines_of(slurp(log))) losses.push_back(std::stod(field(line, "loss")));
  return losses;
}

void expect_near(const std::vector<double>& losses, const std::vector<double>& expected) {
  ASSERT_EQ(losses.size(), expected.size());
  for (std::size_t i = 0; i < losses.size(); ++i)
    EXPECT_NEAR(losses[i], expected[i], 1e-4 * expected[i]) << "step " << i + 1;
}

// The ranks get the resolved settings, which the command prints.
TEST(ToolTrain, TimeoutFlagTakesPrecedenceOverEnvironment) {
  const auto printed = [](std::vector<std::string> more, const std::vector<std::string>& environment) {
    std::vector<std::string> words{PENSTOCK_TOOL,      "train",     "--steps=1", "--batch=2",
                                   "--microbatches=1", "--sample=0"};
    words.insert(words.end(), more.begin(), more.end());
    const Outcome outcome = run_program(words, environment);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return outcome.out;
  };
  EXPECT_THAT(printed({}, {}), HasSubstr("\ntimeout = 300.0\n"));
  EXPECT_THAT(printed({}, {"PENSTOCK_TIMEOUT=70"}), HasSubstr("\ntimeout = 70.0\n"));
  EXPECT_THAT(printed({"--timeout=90"}, {"PENSTOCK_TIMEOUT=70"}), HasSubstr("\ntimeout = 90.0\n"));
}

TEST(ToolTrain, NoShuffleReadsRowsInFileOrder) {
  const std::string archives = PENSTOCK_SOURCE_DIR "/tests/train/archives/";
  const TempDir dir;
  const auto all = checkpoint::load_safetensors(archives + "mlp.safetensors");
  const std::int64_t rows = all.at("target").size(0);
  const auto losses = [&](std::int64_t first, int steps, const std::string& log) {
    // The rows from `first` on, followed by those before it.
    std::map<std::string, at::Tensor> rolled;
    for (const auto& [name, tensor] : all) rolled[name] = tensor.roll({-first}, {0}).contiguous();
    checkpoint::save_safetensors(dir / "rolled.safetensors", rolled);
    const Outcome outcome =
        penstock({"train", archives + "mlp.pt2", "--data=" + (dir / "rolled.safetensors"), "--loss=mse",
                  "--lr=0", "--batch=4", "--microbatches=2", "--no-shuffle", "--device=auto",
                  "--log-json=" + (dir / log), "--steps=" + std::to_string(steps)});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_THAT(outcome.out, AllOf(HasSubstr("no-shuffle = true\n"), HasSubstr("device = \"cpu\"\n")));
    return losses_of(dir / log);
  };
  // The learning rate is 0, so that the loss of a step depends only on its rows.
  const int steps = static_cast<int>(rows / 4) + 2;
  const std::vector<double> all_losses = losses(0, steps, "all");
  ASSERT_EQ(all_losses.size(), static_cast<std::size_t>(steps));
  for (const int step : {2, steps}) {
    const std::vector<double> one = losses((step - 1) * 4 % rows, 1, "step" + std::to_string(step));
    expect_near(one, {all_losses[static_cast<std::size_t>(step - 1)]});
  }
  EXPECT_NE(all_losses[0], all_losses[1]);
}

TEST(ToolTrain, PipelineTensorAndDataRanksMatchLossesOfOneRank) {
  const TempDir dir;
  const auto run = [&](const std::string& name, std::vector<std::string> words) {
    words.insert(words.end(), {"--steps=20", "--sample=0", "--microbatches=2", "--log-json=" + (dir / name)});
    const Outcome outcome = penstock(small(words));
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return losses_of(dir / name);
  };
  const auto alone = run("alone", {"--ranks=1"});
  ASSERT_EQ(alone.size(), 20U);
  EXPECT_LT(alone.back(), alone.front());
  expect_near(run("replicated", {"--pp=2", "--tp=2", "--dp=2"}), alone);
  expect_near(run("sharded", {"--pp=2", "--tp=2", "--dp=2", "--sharding=full", "--schedule=ZBVZeroBubble"}),
              alone);
  expect_near(run("gradients", {"--pp=2", "--dp=2", "--sharding=gradients", "--recompute=blocks.*"}), alone);
  std::ofstream(dir / "recompute.toml") << "sharding = \"optimizer\"\nrecompute = [\"blocks.*.mlp\"]\n";
  expect_near(run("optimizer", {"--pp=1", "--dp=2", "--config=" + (dir / "recompute.toml")}), alone);
}

TEST(ToolTrain, SplitsExportedModelAsPlanned) {
  const TempDir dir;
  const std::string archive = PENSTOCK_SOURCE_DIR "/tests/parallel/archives/transformer";
  const auto run = [&](const std::string& name, std::vector<std::string> words) {
    words.insert(words.begin(),
                 {"train", archive + ".pt2", "--data=" + archive + ".safetensors", "--steps=6", "--batch=8",
                  "--microbatches=2", "--grad-clip=0.7", "--lr=0.004", "--log-json=" + (dir / name)});
    const Outcome outcome = penstock(words);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return losses_of(dir / name);
  };
  const auto alone = run("alone", {"--ranks=1"});
  ASSERT_EQ(alone.size(), 6U);
  expect_near(run("found", {"--pp=2", "--tp=2"}), alone);
  expect_near(run("given", {"--tp=2",
                            "--tp-plan=blocks.*.mlp.gate=colwise,blocks.*.mlp.up=colwise,"
                            "blocks.*.mlp.down=rowwise,blocks.*.norm?=sequence"}),
              alone);
  const Outcome wrong = penstock({"train", archive + ".pt2", "--data=" + archive + ".safetensors", "--tp=2",
                                  "--tp-plan=blocks.*.mlp.up=columns"});
  EXPECT_EQ(wrong.code, 2);
  EXPECT_THAT(wrong.err, AllOf(HasSubstr("'blocks.*.mlp.up=columns'"), HasSubstr("colwise")));
  const Outcome missing = penstock({"train", archive + ".pt2", "--data=" + archive + ".safetensors", "--tp=2",
                                    "--tp-plan=blocks.*.mpl.up=colwise"});
  EXPECT_EQ(missing.code, 2);
  EXPECT_THAT(missing.err, HasSubstr("blocks.*.mpl.up"));
}

TEST(ToolTrain, CommandLineOverridesConfigFile) {
  const TempDir dir;
  std::ofstream(dir / "c.toml")
      << "steps = 9\n[gpt]\nwidth = 16\nlayers = 2\nheads = 2\nseq = 8\nbatch = 8\ngrad_clip = 1\n";
  const Outcome outcome = penstock({"train", "--config", dir / "c.toml", "--steps", "2", "--ranks", "1"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out,
              AllOf(HasSubstr("steps = 2\n"), HasSubstr("grad-clip = 1.0\n"), HasSubstr("step 2/2")));
  std::ofstream(dir / "d.toml") << "steps = 2\nstepz = 3\n";
  const Outcome wrong = penstock({"train", "--config", dir / "d.toml"});
  EXPECT_EQ(wrong.code, 2);
  EXPECT_THAT(wrong.err, AllOf(HasSubstr("line 2"), HasSubstr("'stepz'"), HasSubstr("did you mean steps?")));
}

// The keys of the configuration that a run prints first.
std::string settled(const std::string& out) {
  const std::string title = "# resolved configuration\n";
  const auto begin = out.find(title);
  if (begin == std::string::npos) return "";
  return out.substr(begin + title.size(), out.find("\n\n", begin) + 1 - begin - title.size());
}

// Every option in the help is printed with its value, except those of the other kind of model, and the text
// is an equivalent configuration file.
TEST(ToolTrain, PrintedConfigurationIsCompleteAndRoundTrips) {
  const TempDir dir;
  const std::string archive = PENSTOCK_SOURCE_DIR "/tests/train/archives/language";
  const std::vector<std::string> of_archives{"cuts", "tp-plan", "balance", "loss-output"},
      of_gpt{"seq",          "layers",    "width",  "heads",  "dropout",  "untied",
             "feed-forward", "positions", "sample", "prompt", "tokenizer"};
  // Only options of the chosen data, precision, optimizer and schedule are printed; others would be errors.
  const std::vector<std::string> of_recipe{"momentum",
                                           "dampening",
                                           "beta1",
                                           "beta2",
                                           "epsilon",
                                           "adagrad-decay",
                                           "initial-accumulator",
                                           "rmsprop-alpha",
                                           "lr-final",
                                           "lr-decay-steps",
                                           "lr-power",
                                           "lr-period",
                                           "lr-gamma",
                                           "lr-start",
                                           "loss-scale",
                                           "loss-mean",
                                           "labels",
                                           "class-dim",
                                           "lora-rank",
                                           "lora-alpha",
                                           "lora-dropout",
                                           "document-separator",
                                           "no-boundary-targets",
                                           "token-dtype",
                                           "vocab"};
  const std::string help = penstock({"train", "--help"}).out;
  const std::regex option("\n +--([a-z0-9-]+)");
  const auto check = [&](std::vector<std::string> words, const std::vector<std::string>& without,
                         const std::vector<std::string>& recipe) {
    words.insert(words.begin(), {"train", "--steps=1", "--ranks=1", "--batch=8"});
    const Outcome outcome = penstock(words);
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    const std::string config = settled(outcome.out);
    int count = 0;
    for (std::sregex_iterator it(help.begin(), help.end(), option), end; it != end; ++it) {
      const std::string name = (*it)[1];
      if (name == "json" || name == "config" || name == "dry-run") continue;
      const auto is_in = [&](const std::vector<std::string>& names) {
        return std::find(names.begin(), names.end(), name) != names.end();
      };
      const bool idle = is_in(without) || (is_in(of_recipe) && !is_in(recipe));
      EXPECT_EQ(("\n" + config).find("\n" + name + " = ") == std::string::npos, idle) << name;
      ++count;
    }
    EXPECT_GT(count, 40);
    EXPECT_THAT(config, HasSubstr("\nno-shuffle = false\n"));
    std::ofstream(dir / "settled.toml") << config;
    const Outcome again = penstock({"train", "--config", dir / "settled.toml"});
    EXPECT_EQ(again.code, 0) << again.err;
    EXPECT_EQ(settled(again.out), config);
  };
  check({archive + ".pt2", "--data=" + archive + ".safetensors"}, of_gpt, {"beta1", "beta2", "epsilon"});
  check({"--layers=1", "--width=8", "--heads=1", "--seq=4", "--sample=0", "--optimizer=rmsprop",
         "--lr-schedule=cosine"},
        of_archives,
        {"momentum", "rmsprop-alpha", "epsilon", "lr-final", "document-separator", "no-boundary-targets"});
}

// The same values in another dtype.
TEST(ToolTrain, AcceptsInt32TokensAndLabels) {
  const TempDir dir;
  const std::string archive = PENSTOCK_SOURCE_DIR "/tests/train/archives/language";
  auto tensors = checkpoint::load_safetensors(archive + ".safetensors");
  for (const char* name : {"tokens", "target"}) tensors[name] = tensors[name].to(at::kInt);
  checkpoint::save_safetensors(dir / "int32.safetensors", tensors);
  std::vector<std::vector<double>> losses;
  for (const std::string& data : {archive + ".safetensors", dir / "int32.safetensors"}) {
    const Outcome outcome = penstock({"train", archive + ".pt2", "--data", data, "--steps=3", "--batch=8",
                                      "--ranks=2", "--log-json=" + (dir / "log")});
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    losses.push_back(losses_of(dir / "log"));
  }
  EXPECT_EQ(losses[0].size(), 3U);
  EXPECT_EQ(losses[0], losses[1]);
}

TEST(ToolTrain, QuietPrintsOnlyResult) {
  const TempDir dir;
  const std::string saved = dir / "saved";
  const Outcome outcome = penstock(small({"-q", "--eval-every=2", "--checkpoint=" + saved}));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, testing::MatchesRegex("loss [0-9.]+ at step 1, [0-9.]+ at step 4; "
                                                 "validation loss [0-9.]+\ncheckpoint: " +
                                                 saved + "/step-00000004\n"));
  EXPECT_EQ(outcome.err, "");
  // Warnings and errors stay.
  const Outcome warned =
      penstock(small({"--quiet", "--steps=5", "--seed=2", "--resume", "--checkpoint=" + saved}));
  EXPECT_EQ(warned.code, 0) << warned.err;
  EXPECT_THAT(warned.out,
              StartsWith("the checkpoint was written with seed 1, but this run has seed 2\nloss "));
  const Outcome failed =
      run_program({PENSTOCK_TOOL, "train", "-q", "--steps=1", "--layers=1", "--width=8", "--heads=1"},
                  {"PENSTOCK_FAULT=exit rank=1 step=1"});
  EXPECT_EQ(failed.code, 1);
  EXPECT_THAT(failed.err, HasSubstr("rank 1 failed first"));
  EXPECT_EQ(failed.out, "");
}

TEST(ToolTrain, ResumedRunNamesItsSteps) {
  const TempDir dir;
  const auto run = [&](const std::vector<std::string>& more) {
    std::vector<std::string> words = small({"--sample=0", "--checkpoint=" + (dir / "saved")});
    std::erase(words, "--steps=4");
    words.insert(words.end(), more.begin(), more.end());
    const Outcome outcome = penstock(words);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return outcome.out;
  };
  EXPECT_THAT(run({"--steps=2"}),
              AllOf(testing::Not(HasSubstr("loaded the checkpoint")),
                    testing::ContainsRegex("\nloss [0-9.]+ at step 1, [0-9.]+ at step 2\n")));
  EXPECT_THAT(run({"--steps=4", "--resume"}),
              AllOf(HasSubstr("\nloaded the checkpoint of step 2; training continues from step 3\n"),
                    testing::ContainsRegex("\nloss [0-9.]+ at step 3, [0-9.]+ at step 4\n")));
  EXPECT_THAT(run({"--steps=5", "--resume"}), testing::ContainsRegex("\nloss [0-9.]+ at step 5\n"));
  EXPECT_THAT(run({"--steps=5", "--resume"}),
              AllOf(HasSubstr("\nloaded the checkpoint of step 5; nothing is left to train (--steps 5)\n"),
                    testing::Not(testing::ContainsRegex("\nloss [0-9]"))));
}

TEST(ToolTrain, QuietPrintsNoStepsAsJson) {
  const auto lines = lines_of(penstock(small({"--quiet", "--json"})).out);
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_THAT(lines[0], AllOf(StartsWith("{\"steps\":4,"), HasSubstr("\"last_loss\":")));
  EXPECT_THAT(lines[1], StartsWith("{\"ok\":true,"));
}

TEST(ToolTrain, QuietOmitsHowLayersAreSharded) {
  const std::string archive = PENSTOCK_SOURCE_DIR "/tests/train/archives/language";
  const std::vector<std::string> words{"train",  archive + ".pt2", "--data=" + archive + ".safetensors",
                                       "--tp=2", "--steps=1",      "--batch=8"};
  EXPECT_THAT(penstock(words).out, HasSubstr("sharded over tensor-parallel ranks: "));
  std::vector<std::string> quiet = words;
  quiet.emplace_back("-q");
  const auto lines = lines_of(penstock(quiet).out);
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_THAT(lines[0], StartsWith("loss "));
}

TEST(ToolTrain, VerbosePrintsLogOfEveryRank) {
  const Outcome outcome = penstock(small({"-v", "--sample=0"}));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  for (const char* line :
       {"penstock[0] info: joined a world of 2\n", "penstock[1] info: joined a world of 2\n"})
    EXPECT_THAT(outcome.err, AllOf(HasSubstr(line), testing::Not(HasSubstr(std::string("] ") + line))));
  EXPECT_EQ(penstock(small({"--sample=0"})).err, "");
  const Outcome both = penstock(small({"-v", "-q"}));
  EXPECT_EQ(both.code, 2);
  EXPECT_THAT(both.err, HasSubstr("--quiet and --verbose are mutually exclusive"));
}

TEST(ToolTrain, CommandLineOverridesVerbosityOfFile) {
  const TempDir dir;
  std::ofstream(dir / "c.toml") << "quiet = true\n";
  const Outcome quiet = penstock(small({"--config=" + (dir / "c.toml"), "--sample=0"}));
  EXPECT_THAT(quiet.out, StartsWith("loss "));
  const Outcome verbose = penstock(small({"--config=" + (dir / "c.toml"), "--sample=0", "--verbose"}));
  EXPECT_EQ(verbose.code, 0);
  EXPECT_THAT(verbose.out, HasSubstr("step 4/4"));
  EXPECT_THAT(verbose.err, HasSubstr("info: joined"));
}

TEST(ToolTrain, RunsAsRankUnderOtherLauncher) {
  std::vector<std::string> words = small({"--ranks=2"});
  words.insert(words.begin(), {"run", "--ranks", "2", "--", PENSTOCK_TOOL});
  const Outcome outcome = penstock(words);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("[0] step 4/4  loss "));
}

}  // namespace
}  // namespace penstock::test
