// `penstock train --dry-run` through the real binaries: its stages and sizes are those of real runs, its
// errors are those of real runs, and it starts and writes nothing.
#include "support/program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/file.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <regex>

namespace penstock::test {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using Words = std::vector<std::string>;

const std::string kArchives = PENSTOCK_SOURCE_DIR "/tests/train/archives/";

Words gpt(Words more) {
  Words words{"train", "--layers=4", "--width=32", "--heads=4", "--seq=16", "--batch=8", "--sample=0"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

Words archive(Words more) {
  Words words{"train", kArchives + "language.pt2", "--data=" + kArchives + "language.safetensors",
              "--batch=8"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

Words with(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

json forecast(const Words& words) {
  const Outcome outcome = penstock(with(words, {"--dry-run", "--json"}));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, IsEmpty());
  return json::parse(outcome.out);
}

//! The floating-point operations that fit into the predicted step: the step time depends on the measured
//! speed, this does not.
double work_in(const json& forecast) {
  const double flops_per_second = forecast.at("prediction").at("flops_per_second");
  const double step_time = forecast.at("prediction").at("step_time");
  EXPECT_GT(flops_per_second, 0);
  EXPECT_GT(step_time, 0);
  return flops_per_second * step_time;
}

//! The numbers of this key in a cost file, one per stage.
std::vector<std::int64_t> costs_in(const std::string& file, const std::string& key) {
  std::vector<std::int64_t> numbers;
  const std::regex line("\n" + key + " = ([0-9]+)");
  const std::string text = slurp(file);
  for (std::sregex_iterator it(text.begin(), text.end(), line), end; it != end; ++it)
    numbers.push_back(std::stoll((*it)[1]));
  return numbers;
}

//! The local sizes of all stages in a forecast.
std::vector<std::int64_t> sizes_in(const json& forecast, const char* key) {
  std::vector<std::int64_t> sizes;
  for (const json& stage : forecast.at("stages")) sizes.push_back(stage.at("per_rank").at(key));
  return sizes;
}

// The trainer writes the sizes of the stages that it has built into the cost file of --profile.
TEST(ToolDryRun, SizesOfStagesAreThoseOfRealRun) {
  const TempDir dir;
  const std::vector<Words> runs{gpt({"--ranks=2"}),
                                gpt({"--ranks=2", "--schedule=ZBVZeroBubble", "--untied"}),
                                gpt({"--pp=2", "--tp=2", "--optimizer=sgd", "--momentum=0.9"}),
                                gpt({"--pp=1", "--dp=2", "--optimizer=sgd"}),
                                archive({"--ranks=2"}),
                                archive({"--pp=1", "--tp=2"})};
  for (const Words& run : runs) {
    const Outcome real = penstock(with(run, {"--steps=2", "--profile=" + (dir / "costs.toml")}));
    ASSERT_EQ(real.code, 0) << real.err;
    const json predicted = forecast(run);
    const std::string shown = testing::PrintToString(run);
    EXPECT_EQ(sizes_in(predicted, "parameter_bytes"), costs_in(dir / "costs.toml", "parameter_bytes"))
        << shown;
    EXPECT_EQ(sizes_in(predicted, "optimizer_bytes"), costs_in(dir / "costs.toml", "optimizer_bytes"))
        << shown;
    // The last stage sends nothing, but the trainer counts its result.
    std::vector<std::int64_t> sent = sizes_in(predicted, "output_bytes"),
                              measured = costs_in(dir / "costs.toml", "output_bytes");
    sent.pop_back(), measured.pop_back();
    EXPECT_EQ(sent, measured) << shown;
  }
}

TEST(ToolDryRun, ShardedSizesAreThoseOfRealRun) {
  const TempDir dir;
  const json replicated = forecast(gpt({"--pp=1", "--dp=2"}));
  struct Shards {
    const char* sharding;
    double parameters, gradients, optimizer;
  };
  for (const Shards& shards :
       {Shards{"optimizer", 1, 1, 0.5}, Shards{"gradients", 1, 0.5, 0.5}, Shards{"full", 0.5, 0.5, 0.5}}) {
    SCOPED_TRACE(shards.sharding);
    const Words run = gpt({"--pp=1", "--dp=2", std::string("--sharding=") + shards.sharding});
    ASSERT_EQ(penstock(with(run, {"--steps=2", "--profile=" + (dir / "costs.toml")})).code, 0);
    const json predicted = forecast(run);
    for (const auto& [key, share] :
         {std::pair{"parameter_bytes", shards.parameters}, std::pair{"gradient_bytes", shards.gradients},
          std::pair{"optimizer_bytes", shards.optimizer}}) {
      const std::vector<std::int64_t> sizes = sizes_in(predicted, key),
                                      real = costs_in(dir / "costs.toml", key);
      ASSERT_EQ(sizes.size(), real.size());
      // A shard may be padded.
      const auto found = static_cast<double>(real[0]);
      EXPECT_NEAR(static_cast<double>(sizes[0]), found, 0.02 * found) << key;
      EXPECT_NEAR(found, share * static_cast<double>(sizes_in(replicated, key)[0]), 0.02 * found) << key;
    }
  }
}

// The measured bytes include what libtorch allocates for itself, and the prediction assumes that autograd
// keeps every result.
TEST(ToolDryRun, ActivationsAreCloseToMeasuredOnes) {
  const TempDir dir;
  const Words run{"train", "--ranks=2", "--batch=16", "--sample=0"};
  ASSERT_EQ(penstock(with(run, {"--steps=2", "--profile=" + (dir / "costs.toml")})).code, 0);
  const std::vector<std::int64_t> predicted = sizes_in(forecast(run), "activation_bytes"),
                                  real = costs_in(dir / "costs.toml", "activation_bytes");
  ASSERT_EQ(predicted.size(), 2U);
  for (std::size_t s = 0; s < 2; ++s) {
    EXPECT_GT(predicted[s], real[s] / 2) << s;
    EXPECT_LT(predicted[s], real[s] * 2) << s;
  }
}

TEST(ToolDryRun, GptIsSplitAtGivenPoints) {
  const Outcome outcome = penstock({"train", "--layers=4", "--width=16", "--heads=2", "--seq=8", "--ranks=2",
                                    "--split=blocks.2=end", "--dry-run"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, testing::HasSubstr("before blocks.3; given by --split\n"));
  EXPECT_THAT(outcome.out, testing::HasSubstr("  blocks.3, norm, token (partial)\n"));
}

TEST(ToolDryRun, StagesOfArchiveAreThoseOfInspect) {
  const std::vector<std::pair<std::string, Words>> cases{
      {"--stages=4", {"--ranks=2", "--schedule=Interleaved1F1B"}},
      {"--split=layers.1=beginning,layers.3=beginning", {"--ranks=3"}}};
  for (const auto& [split, more] : cases) {
    const json predicted = forecast(with(archive({split}), more));
    const Outcome outcome = penstock({"inspect", kArchives + "language.pt2", split, "--json"});
    const json inspected = json::parse(outcome.out);
    ASSERT_EQ(predicted.at("stages").size(), inspected.at("stages").size());
    for (std::size_t s = 0; s < inspected.at("stages").size(); ++s) {
      const json &mine = predicted.at("stages")[s], &other = inspected.at("stages")[s];
      EXPECT_EQ(mine.at("modules"), other.at("modules")) << s;
      EXPECT_EQ(mine.at("parameter_bytes"), other.at("parameter_bytes")) << s;
    }
    EXPECT_EQ(predicted.at("tied"), inspected.at("tied"));
  }
}

// A checkpoint contains each parameter of the model once.
TEST(ToolDryRun, ParametersAreThoseOfCheckpoint) {
  const TempDir dir;
  for (const Words& run : {gpt({}), archive({})}) {
    std::filesystem::remove_all(dir / "saved");
    ASSERT_EQ(penstock(with(run, {"--steps=1", "--checkpoint=" + (dir / "saved")})).code, 0);
    const json saved = json::parse(penstock({"checkpoint", "inspect", dir / "saved", "--json"}).out);
    std::int64_t elements = 0;
    for (const json& tensor : saved.at("tensors")) {
      if (tensor.at("kind") != "parameter") continue;
      std::int64_t size = 1;
      for (const std::int64_t dim : tensor.at("shape")) size *= dim;
      elements += size;
    }
    const json predicted = forecast(run);
    EXPECT_GT(elements, 0);
    EXPECT_EQ(predicted.at("model").at("parameters"), elements);
    EXPECT_EQ(predicted.at("model").at("parameter_bytes"), 4 * elements);
    // All stages together have every parameter, and the tied ones twice.
    std::int64_t in_stages = 0;
    for (const json& stage : predicted.at("stages")) in_stages += stage.at("parameters").get<std::int64_t>();
    EXPECT_GT(in_stages, elements);
  }
}

// The oracle of the share is the table of stages. `--balance time` makes the stages of the first model even;
// one layer of the MLP has most of its parameters and work.
TEST(ToolDryRun, WarnsOfUnevenStagesAndNamesOption) {
  const auto mlp_data = [](const std::string& model, const Words& more) {
    return with({"train", kArchives + model, "--data=" + kArchives + "mlp.safetensors", "--loss=mse",
                 "--batch=8", "--microbatches=4"},
                more);
  };
  const auto warning_of = [](const Words& words) {
    const json predicted = forecast(words);
    for (const json& note : predicted.at("notes"))
      if (const auto text = note.get<std::string>(); text.starts_with("warning: ")) return text;
    return std::string();
  };
  const auto share_of = [](const Words& words, std::size_t stage) {
    double sum = 0;
    const json stages = forecast(words).at("stages");
    for (const json& one : stages) sum += one.at("flops").get<double>();
    return stages[stage].at("flops").get<double>() / sum;
  };
  const Words uneven = mlp_data("uneven.pt2", {"--ranks=2"});
  const std::string warning = warning_of(uneven);
  EXPECT_THAT(warning, AllOf(HasSubstr("stage 0 of 2 has "), HasSubstr("use --balance time ")));
  EXPECT_NEAR(std::stod(warning.substr(warning.find("has ") + 4)), 100 * share_of(uneven, 0), 0.1);
  EXPECT_LT(share_of(with(uneven, {"--balance=time"}), 0), 0.75);
  EXPECT_EQ(warning_of(with(uneven, {"--balance=time"})), "");
  EXPECT_EQ(warning_of(with(uneven, {"--split=head=beginning"})), "");
  EXPECT_THAT(warning_of(mlp_data("mlp.pt2", {"--ranks=3"})),
              AllOf(HasSubstr("stage 1 of 3 has 77.4% of the operations"), HasSubstr("use fewer stages")));
  EXPECT_EQ(warning_of(archive({"--ranks=4"})), "");
  EXPECT_EQ(warning_of(gpt({"--ranks=2"})), "");
  // The run warns too.
  const Outcome real = penstock(with(uneven, {"--steps=1"}));
  EXPECT_EQ(real.code, 0);
  EXPECT_EQ(real.err, warning + "\n");
}

// docs/simulation.md: 1F1B holds the activations of min(m, p - r) microbatches on rank r.
TEST(ToolDryRun, MemoryFollowsFormulaOf1F1B) {
  const json predicted = forecast(gpt({"--ranks=3", "--microbatches=8", "--seed=4"}));
  for (int r = 0; r < 3; ++r) {
    const json& rank = predicted.at("ranks")[static_cast<std::size_t>(r)];
    const json& stage = predicted.at("stages")[static_cast<std::size_t>(r)].at("per_rank");
    EXPECT_EQ(rank.at("stages"), json({r}));
    EXPECT_EQ(rank.at("in_flight_bytes"), stage.at("activation_bytes").get<std::int64_t>() * (3 - r));
    EXPECT_EQ(rank.at("peak_memory").get<std::int64_t>(), rank.at("parameter_bytes").get<std::int64_t>() +
                                                              rank.at("gradient_bytes").get<std::int64_t>() +
                                                              rank.at("optimizer_bytes").get<std::int64_t>() +
                                                              rank.at("in_flight_bytes").get<std::int64_t>());
  }
  const json recomputed = forecast(gpt({"--ranks=3", "--microbatches=8", "--recompute"}));
  EXPECT_LT(recomputed.at("ranks")[0].at("in_flight_bytes"), predicted.at("ranks")[0].at("in_flight_bytes"));
  EXPECT_GT(work_in(recomputed), work_in(predicted));
  const json blocks = forecast(gpt({"--ranks=3", "--microbatches=8", "--recompute=blocks.*"}));
  EXPECT_LT(blocks.at("ranks")[0].at("in_flight_bytes"), predicted.at("ranks")[0].at("in_flight_bytes"));
  EXPECT_GT(work_in(blocks), work_in(predicted));
  EXPECT_LE(work_in(blocks), 1.001 * work_in(recomputed));
  EXPECT_EQ(blocks.at("schedule").at("recompute_modules"), json({"blocks.*"}));
}

TEST(ToolDryRun, StepTimeIsProportionalToMeasuredSpeed) {
  for (const Words& run : {gpt({"--ranks=2"}), gpt({"--ranks=2", "--schedule=auto"})}) {
    const json first = forecast(run), second = forecast(run);
    EXPECT_NEAR(work_in(first) / work_in(second), 1, 1e-9);
    EXPECT_NEAR(first.at("prediction").at("bubble").get<double>(),
                second.at("prediction").at("bubble").get<double>(), 1e-9);
  }
  // One rank computes without bubbles: three times the forward, for each microbatch.
  const json alone = forecast(gpt({"--ranks=1", "--microbatches=4"}));
  const double forward = alone.at("stages")[0].at("flops").get<double>();
  EXPECT_NEAR(work_in(alone) / (3 * 4 * forward), 1, 1e-9);
}

TEST(ToolDryRun, ReportsTopologyAndPlacement) {
  const json predicted =
      forecast(gpt({"--pp=2", "--tp=2", "--dp=2", "--schedule=ZBVZeroBubble", "--microbatches=4"}));
  EXPECT_EQ(predicted.at("topology").at("ranks"), 8);
  EXPECT_EQ(predicted.at("schedule").at("name"), "ZBVZeroBubble");
  // World rank = (pp * D + dp) * T + tp; stages 0 and 3 of a V are on the first rank.
  EXPECT_EQ(predicted.at("ranks")[0].at("stages"), json({0, 3}));
  EXPECT_EQ(predicted.at("ranks")[0].at("world_ranks"), json({0, 1, 2, 3}));
  EXPECT_EQ(predicted.at("ranks")[1].at("world_ranks"), json({4, 5, 6, 7}));
  EXPECT_THAT(predicted.at("config").get<std::string>(),
              AllOf(HasSubstr("tp = 2\n"), Not(HasSubstr("dry-run")), Not(HasSubstr("quiet"))));
}

//! Every file below a directory, with its size and time of change.
std::vector<std::string> listing(const std::string& directory) {
  std::vector<std::string> entries;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory)) {
    struct stat status {};
    stat(entry.path().c_str(), &status);
    entries.push_back(entry.path().string() + " " + std::to_string(status.st_size) + " " +
                      std::to_string(status.st_mtim.tv_sec) + "." + std::to_string(status.st_mtim.tv_nsec));
  }
  std::sort(entries.begin(), entries.end());
  return entries;
}

TEST(ToolDryRun, StartsNoRanksAndWritesNothing) {
  const TempDir dir;
  ASSERT_EQ(penstock(gpt({"--steps=2", "--checkpoint=" + (dir / "saved")})).code, 0);
  const std::vector<std::string> before = listing(dir.path());
  const Words outputs{"--output=" + (dir / "new/run"), "--trace=" + (dir / "trace.json"),
                      "--profile=" + (dir / "costs.toml")};
  for (const Words& run :
       {gpt(outputs), archive(outputs), gpt({"--steps=9", "--resume", "--checkpoint=" + (dir / "saved")})}) {
    Words words = with(run, {"--dry-run"});
    words.insert(words.begin(), PENSTOCK_TOOL);
    // Every rank that started would fail.
    const Outcome outcome = run_program(words, {"PENSTOCK_FAULT=exit at=start"});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_EQ(listing(dir.path()), before);
  }
  const json predicted = forecast(gpt(outputs));
  EXPECT_EQ(predicted.at("would_create"), json({dir / "new/run", dir / "new/run/checkpoint"}));
}

TEST(ToolDryRun, ReportsStepOfResumedRun) {
  const TempDir dir;
  ASSERT_EQ(penstock(gpt({"--steps=2", "--checkpoint=" + (dir / "saved")})).code, 0);
  const Outcome outcome =
      penstock(gpt({"--dry-run", "--steps=9", "--resume", "--checkpoint=" + (dir / "saved")}));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("9, from step 3\n"), HasSubstr("resumes from step-00000002; ")));
}

// All errors that the command finds before it starts ranks, with the same text.
TEST(ToolDryRun, FindsErrorsOfRealRun) {
  const TempDir dir;
  ASSERT_EQ(penstock(gpt({"--steps=1", "--checkpoint=" + (dir / "saved")})).code, 0);
  std::ofstream(dir / "file") << "text";
  const std::vector<Words> runs{gpt({"--ranks=0"}),
                                gpt({"--ranks=7"}),
                                gpt({"--heads=3"}),
                                gpt({"--tp=3"}),
                                gpt({"--schedule=1F1"}),
                                gpt({"--schedule=ZBVZeroBubble", "--stages-per-rank=3"}),
                                gpt({"--batch=3", "--microbatches=4"}),
                                gpt({"--device=cuda"}),
                                gpt({"--split=a=end"}),
                                gpt({"--data=" + (dir / "nowhere.txt")}),
                                gpt({"--checkpoint=" + (dir / "saved")}),
                                gpt({"--resume", "--checkpoint=" + (dir / "nowhere")}),
                                gpt({"--width=64", "--resume", "--checkpoint=" + (dir / "saved")}),
                                gpt({"--output=" + (dir / "file")}),
                                gpt({"--checkpoint=" + (dir / "file/in")}),
                                gpt({"--log-json=" + (dir / "no/log")}),
                                archive({"--split=layer.1=beginning"}),
                                archive({"--split=layers.1=beginning", "--ranks=3"}),
                                archive({"--tp-plan=nothing=colwise", "--tp=2"}),
                                archive({"--loss-output=nothing"}),
                                archive({"--batch=200"})};
  for (const Words& run : runs) {
    const Outcome real = penstock(with(run, {"--steps=1"})),
                  dry = penstock(with(run, {"--steps=1", "--dry-run"}));
    const std::string shown = testing::PrintToString(run);
    EXPECT_EQ(real.code, 2) << shown;
    EXPECT_EQ(dry.code, 2) << shown;
    EXPECT_EQ(dry.err, real.err) << shown;
    EXPECT_THAT(dry.out, IsEmpty()) << shown;
  }
}

TEST(ToolDryRun, AcceptsFilesInDirectoriesThatRunCreates) {
  const TempDir dir;
  const std::string runs = dir / "runs";
  const Words outputs{"--checkpoint=" + runs + "/mine", "--timeline=" + runs + "/mine.html",
                      "--log-json=" + runs + "/mine/log"};
  const Outcome accepted = penstock(with(gpt({"--dry-run", "--steps=2"}), outputs));
  EXPECT_EQ(accepted.code, 0) << accepted.err;
  EXPECT_FALSE(std::filesystem::exists(runs));
  const Outcome rejected = penstock(gpt({"--dry-run", "--steps=2", "--checkpoint=" + runs + "/mine",
                                         "--timeline=" + runs + "/other/mine.html"}));
  EXPECT_EQ(rejected.code, 2);
  EXPECT_THAT(rejected.err, HasSubstr("--timeline: there is no directory"));
}

TEST(ToolDryRun, ReportsDirectoryInUse) {
  const TempDir dir;
  ASSERT_EQ(penstock(gpt({"--steps=1", "--checkpoint=" + (dir / "saved")})).code, 0);
  const int lock = open((dir / "saved/run.lock").c_str(), O_RDWR);
  ASSERT_EQ(flock(lock, LOCK_EX), 0);
  const Outcome outcome =
      penstock(gpt({"--dry-run", "--steps=2", "--resume", "--checkpoint=" + (dir / "saved")}));
  close(lock);
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("in use by another run: process "));
}

TEST(ToolDryRun, TextFitsInHundredColumns) {
  for (const Words& run :
       {gpt({"--ranks=3"}), archive({"--ranks=4", "--tp=2", "--schedule=auto", "--precision=bf16"}),
        Words({"train", "--layers=24", "--batch=8", "--pp=4", "--stages-per-rank=2",
               "--schedule=Interleaved1F1B", "--dp=2", "--sharding=full", "--microbatches=4",
               "--accumulate=1"})}) {
    const Outcome outcome = penstock(with(run, {"--dry-run"}));
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_THAT(outcome.out,
                AllOf(HasSubstr("\nstage  rank  parameters"), HasSubstr("\npredicted memory per rank\n"),
                      HasSubstr("\npredicted step  "), HasSubstr("Times follow from operation counts")));
    std::istringstream lines(outcome.out);
    for (std::string line; std::getline(lines, line);) {
      // A path has no spaces to break at, and "…" has three bytes.
      const bool is_path = line.find('/') != std::string::npos;
      EXPECT_TRUE(is_path || line.size() <= 104) << line;
    }
  }
}

TEST(ToolDryRun, WorksInConfigurationFile) {
  const TempDir dir;
  std::ofstream(dir / "c.toml") << "dry-run = true\nverbose = true\nlayers = 2\nwidth = 16\nheads = 2\n";
  const Outcome outcome = penstock({"train", "--config", dir / "c.toml", "--steps=3"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("dry run: "), HasSubstr("# resolved configuration\n"),
                                 HasSubstr("layers = 2\n"), Not(HasSubstr("dry-run = "))));
}

TEST(ToolDryRun, OneRankOfOtherLauncherPrints) {
  Words words = gpt({"--dry-run"});
  words.insert(words.begin(), {"run", "--ranks", "3", "--", PENSTOCK_TOOL});
  const Outcome outcome = penstock(words);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out,
              AllOf(HasSubstr("3 ranks of torchrun: pp 3 x tp 1 x dp 1"), Not(HasSubstr("[1]"))));
  words.insert(words.end(), "--pp=2");
  EXPECT_THAT(penstock(words).err, HasSubstr("is 2, but the launcher started 3 ranks"));
}

}  // namespace
}  // namespace penstock::test
