// `penstock plan --model`: the command that it prints trains the model with the plan.
#include "support/lines.h"
#include "support/program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace penstock::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;

const std::string kArchives = PENSTOCK_SOURCE_DIR "/tests/train/archives/";

json parsed(const Outcome& outcome) {
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  return json::parse(outcome.out);
}

json planned(std::vector<std::string> words) {
  words.insert(words.begin(), {"plan", "--model", kArchives + "causal.pt2", "--json"});
  return parsed(penstock(words));
}

//! What the command of the best plan would run, with files of data.
json forecast(const json& plans, const std::string& tokens) {
  std::vector<std::string> words = plans.at(0).at("train_command");
  words.erase(words.begin());
  *std::find(words.begin(), words.end(), "FILE.safetensors") = tokens;
  words.insert(words.end(), {"--dry-run", "--json", "--seq=6"});
  return parsed(penstock(words));
}

std::string token_file(const TempDir& dir) {
  const std::string path = dir / "tokens.bin";
  std::ofstream out(path, std::ios::binary);
  for (int i = 0; i < 2000; ++i) {
    const auto token = static_cast<std::uint16_t>(i % 7);
    out.write(reinterpret_cast<const char*>(&token), sizeof token);
  }
  return path;
}

//! The first operators of the stages of a plan, from the layers of `penstock costs`.
std::vector<std::int64_t> split_of(const json& plan) {
  const json costs = parsed(penstock({"costs", kArchives + "causal.pt2", "--layers", "16", "--json"}));
  std::vector<std::int64_t> positions;
  const std::vector<std::size_t> first = plan.at("first_layer");
  for (std::size_t s = 1; s + 1 < first.size(); ++s)
    positions.push_back(costs.at("layers").at(first[s]).at("first_operator"));
  return positions;
}

TEST(ToolPlanModel, CommandRunsStagesAndScheduleOfPlan) {
  const TempDir dir;
  const std::string tokens = token_file(dir);
  for (const std::string schedules : {"1F1B", "ZB1P", "Interleaved1F1B", "ZBVZeroBubble", "Auto"}) {
    const std::string table = dir / (schedules + ".csv");
    const json plans =
        planned({"--ranks", "2", "--microbatches", "4", "--schedules", schedules, "--save", table});
    const json& best = plans.at(0);
    const json run = forecast(plans, tokens);
    EXPECT_EQ(run.at("split"), json(split_of(best))) << schedules;
    EXPECT_EQ(run.at("balance"), "given by --cuts");
    EXPECT_EQ(run.at("schedule").at("name"), schedules == "Auto" ? schedules + ".csv" : schedules);
    EXPECT_EQ(run.at("schedule").at("stages_per_rank"), best.at("stages_per_rank"));
    EXPECT_EQ(run.at("schedule").at("microbatches"), best.at("microbatches"));
    EXPECT_EQ(run.at("schedule").at("recompute"), best.at("recompute"));
    EXPECT_EQ(run.at("batch"), 4 * 4);  // the model was exported with 4 sequences
    // The bubble does not depend on the speed, which the two commands assume differently. The planner
    // assumes no weight gradients for layers without weights.
    EXPECT_NEAR(run.at("prediction").at("bubble").get<double>(), best.at("bubble").get<double>(), 5e-3)
        << schedules;
  }
}

TEST(ToolPlanModel, CommandRecomputesWhatFitsUnderCap) {
  const TempDir dir;
  const std::string tokens = token_file(dir);
  const std::vector<std::string> words{"--ranks", "2", "--microbatches", "8", "--schedules", "1F1B"};
  const std::uint64_t without = planned(words).at(0).at("peak_memory");
  std::set<std::size_t> numbers;
  bool whole_stages = false;
  for (const double share : {0.98, 0.95, 0.9, 0.85, 0.8}) {
    std::vector<std::string> capped = words;
    const auto cap = static_cast<std::uint64_t>(share * static_cast<double>(without));
    capped.insert(capped.end(), {"--memory-cap", std::to_string(cap)});
    const Outcome outcome = [&] {
      std::vector<std::string> all{"plan", "--model", kArchives + "causal.pt2", "--json"};
      all.insert(all.end(), capped.begin(), capped.end());
      return penstock(all);
    }();
    if (outcome.code == 1) continue;  // nothing fits
    const json plans = parsed(outcome);
    const json& best = plans.at(0);
    const json run = forecast(plans, tokens);
    EXPECT_EQ(run.at("schedule").at("recompute"), best.at("recompute"));
    EXPECT_EQ(run.at("schedule").at("recompute_modules"), best.at("recompute_modules"));
    EXPECT_EQ(run.at("split"), json(split_of(best)));
    EXPECT_LE(best.at("peak_memory").get<std::uint64_t>(), cap);
    for (const json& rank : run.at("ranks")) EXPECT_LE(rank.at("peak_memory").get<std::uint64_t>(), cap);
    numbers.insert(best.at("recompute_modules").size());
    whole_stages |= best.at("recompute").get<bool>();
  }
  EXPECT_GE(numbers.size() + (whole_stages ? 1 : 0), 2U);
}

// AdamW has two states per parameter and a step; SGD without momentum has none.
TEST(ToolPlanModel, CountsStatesOfOptimizer) {
  const auto costs = [](std::vector<std::string> more, const std::string& model = "causal.pt2") {
    std::vector<std::string> words{"costs", kArchives + model, "--json"};
    words.insert(words.end(), more.begin(), more.end());
    std::uint64_t parameters = 0, states = 0;
    const json found = parsed(penstock(words));
    for (const json& layer : found.at("layers")) {
      parameters += layer.at("parameter_bytes").get<std::uint64_t>();
      states += layer.at("optimizer_bytes").get<std::uint64_t>();
    }
    return std::pair(parameters, states);
  };
  const auto [parameters, states] = costs({});
  EXPECT_GE(states, 2 * parameters);
  EXPECT_LT(states, 2 * parameters + 4 * 64);  // a step per parameter
  EXPECT_EQ(costs({"--optimizer", "sgd"}), std::pair(parameters, std::uint64_t{0}));
  EXPECT_EQ(costs({"--optimizer", "sgd", "--momentum", "0.9"}), std::pair(parameters, parameters));
  EXPECT_EQ(costs({"--param-dtype", "bf16"}), std::pair(parameters + parameters / 2, states));
  // Next to parameters in bfloat16, the master weights and their states are float32.
  const auto exact = costs({}, "language.pt2"),
             converted = costs({"--param-dtype", "float32"}, "language_bf16.pt2");
  EXPECT_EQ(converted, exact);
  EXPECT_EQ(costs({}, "language_bf16.pt2"), std::pair(exact.first + exact.first / 2, exact.second));

  const std::vector<std::string> words{"--ranks", "1", "--microbatches", "2", "--schedules", "GPipe"};
  std::vector<std::string> sgd = words;
  sgd.insert(sgd.end(), {"--optimizer", "sgd"});
  const json plain = planned(sgd);
  EXPECT_EQ(planned(words).at(0).at("peak_memory").get<std::uint64_t>() -
                plain.at(0).at("peak_memory").get<std::uint64_t>(),
            states);
  const std::vector<std::string> command = plain.at(0).at("train_command");
  EXPECT_THAT(command, testing::IsSupersetOf({"--optimizer", "sgd"}));
  EXPECT_THAT(penstock({"plan", "--ranks", "2", "--microbatches", "2", "--optimizer", "sgd"}).err,
              HasSubstr("--optimizer requires --model"));
}

TEST(ToolPlanModel, PrintsCommandThatTrains) {
  const Outcome plan = penstock({"plan", "--model", kArchives + "mlp.pt2", "--ranks", "2", "--microbatches",
                                 "2", "--schedules", "ZB1P"});
  ASSERT_EQ(plan.code, 0) << plan.err;
  const std::string command = lines_of(plan.out).back();
  EXPECT_THAT(command, testing::StartsWith("  penstock train " + kArchives +
                                           "mlp.pt2 --data FILE.safetensors --ranks 2 --schedule ZB1P "
                                           "--stages-per-rank 1 --microbatches 2 --batch "));
  EXPECT_THAT(command, HasSubstr(" --cuts "));
  std::vector<std::string> words;
  std::istringstream in(command);
  for (std::string word; in >> word;)
    words.push_back(word == "FILE.safetensors" ? kArchives + "mlp.safetensors" : word);
  words[0] = PENSTOCK_TOOL;
  words.insert(words.end(), {"--loss=mse", "--steps=1"});
  const Outcome train = run_program(words);
  EXPECT_EQ(train.code, 0) << train.err;
  EXPECT_THAT(train.out, HasSubstr("; ZB1P over 2 stages"));
}

// The losses do not depend on the schedule.
TEST(ToolPlanModel, TrainsWithScheduleOfFile) {
  const TempDir dir;
  const std::string tokens = token_file(dir), table = dir / "mine.csv";
  const auto losses = [&](std::vector<std::string> more) {
    std::vector<std::string> words{
        "train", kArchives + "causal.pt2", "--data=" + tokens, "--seq=6", "--steps=2", "--batch=8", "--json"};
    words.insert(words.end(), more.begin(), more.end());
    const Outcome outcome = penstock(words);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    std::vector<double> found;
    for (const std::string& line : lines_of(outcome.out))
      if (const json step = json::parse(line); step.contains("loss")) found.push_back(step.at("loss"));
    return found;
  };
  ASSERT_EQ(penstock({"schedule", "GPipe", "--ranks", "2", "--microbatches", "4", "-o", table}).code, 0);
  const std::vector<double> expected = losses({"--ranks=2", "--schedule=GPipe"});
  ASSERT_EQ(expected.size(), 2U);
  EXPECT_EQ(losses({"--ranks=2", "--schedule=" + table}), expected);

  const auto error = [&](const std::vector<std::string>& more) {
    std::vector<std::string> words{"train", kArchives + "causal.pt2", "--data=" + tokens, "--seq=6",
                                   "--schedule=" + table};
    words.insert(words.end(), more.begin(), more.end());
    const Outcome outcome = penstock(words);
    EXPECT_EQ(outcome.code, 2) << outcome.out;
    return outcome.err;
  };
  EXPECT_THAT(error({"--ranks=3"}), HasSubstr("2 stages cannot be divided evenly among 3 pipeline ranks"));
  EXPECT_THAT(error({"--ranks=2", "--microbatches=2"}), HasSubstr("has 4 microbatches, but the run has 2"));
  EXPECT_THAT(error({"--ranks=2", "--cuts=1,x"}), HasSubstr("'x' is not a valid operator index"));
  EXPECT_THAT(error({"--ranks=2", "--cuts=3", "--split=layers.1=beginning"}),
              HasSubstr("mutually exclusive"));
  std::ofstream(table) << "0F0,0B0,0B0\n1F0,1B0\n";
  EXPECT_THAT(error({"--ranks=2"}), HasSubstr("0B0"));
}

TEST(ToolPlanModel, QuotesPathsForShell) {
  const TempDir dir;
  const std::string path = dir / "it's mine.pt2";
  std::filesystem::copy_file(PENSTOCK_SOURCE_DIR "/tests/train/archives/mlp.pt2", path);
  const Outcome plan =
      penstock({"plan", "--model", path, "--ranks", "2", "--microbatches", "2", "--schedules", "1F1B"});
  ASSERT_EQ(plan.code, 0) << plan.err;
  // The shell reads the quoted word as the path.
  const std::string command = lines_of(plan.out).back();
  const std::string start = "penstock train ", end = " --data";
  const std::size_t from = command.find(start) + start.size();
  const Outcome echoed =
      run_program({"sh", "-c", "printf %s " + command.substr(from, command.find(end) - from)});
  EXPECT_EQ(echoed.out, path);
}

}  // namespace
}  // namespace penstock::test
