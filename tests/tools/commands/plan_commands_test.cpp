// `penstock schedule`, `validate`, `simulate` and `plan` through the real binary: output, exit codes and
// errors.
#include "support/program.h"

#include <penstock/schedule/csv.h>
#include <penstock/schedule/generate.h>
#include <penstock/schedule/lower.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/stat.h>

#include <fstream>

namespace penstock::plan {
namespace {

using nlohmann::json;
using test::Outcome;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

Outcome penstock(std::vector<std::string> words) {
  return test::penstock(std::move(words));
}

json parsed(std::vector<std::string> words, int code = 0) {
  words.push_back("--json");
  const Outcome outcome = test::penstock(std::move(words));
  EXPECT_EQ(outcome.code, code) << outcome.err;
  return json::parse(outcome.out);
}

std::string write(const test::TempDir& dir, const std::string& name, const std::string& text) {
  std::ofstream(dir / name, std::ios::binary) << text;
  return dir / name;
}

TEST(ToolScheduleCommand, PrintsTableAndLoweredList) {
  const schedule::Schedule schedule = schedule::make_schedule("Interleaved1F1B", {3, 2, 6});
  EXPECT_EQ(penstock({"schedule", "interleaved1f1b", "--ranks", "3", "--stages-per-rank", "2",
                      "--microbatches", "6"})
                .out,
            to_csv(schedule));
  EXPECT_EQ(penstock({"schedule", "Interleaved1F1B", "--ranks", "3", "--stages-per-rank", "2",
                      "--microbatches", "6", "--lowered"})
                .out,
            to_csv(lower(schedule)));
}

TEST(ToolScheduleCommand, UsesTwoStagesPerRankForVSchedules) {
  const json table = parsed({"schedule", "ZBVZeroBubble", "--ranks", "3", "--microbatches", "6"});
  EXPECT_EQ(table.at("stages"), 6);
  EXPECT_EQ(table.at("rank_of_stage"), json({0, 1, 2, 2, 1, 0}));
  EXPECT_EQ(table.at("rows").size(), 3u);
}

TEST(ToolScheduleCommand, PrintsSingleRankOfWideSchedule) {
  const Outcome outcome =
      penstock({"schedule", "1F1B", "--ranks", "4096", "--microbatches", "8", "--rank", "4095"});
  EXPECT_EQ(outcome.out,
            "4095F0,4095B0,4095F1,4095B1,4095F2,4095B2,4095F3,4095B3,4095F4,4095B4,4095F5,4095B5,4095F6,"
            "4095B6,4095F7,4095B7\n");
}

TEST(ToolScheduleCommand, ListsEverySchedule) {
  const Outcome outcome = penstock({"schedule", "--list"});
  EXPECT_EQ(outcome.code, 0);
  for (const std::string& name : schedule::schedule_names()) EXPECT_THAT(outcome.out, HasSubstr(name));
  EXPECT_EQ(parsed({"schedule", "--list"}).size(), schedule::schedule_names().size());
}

TEST(ToolScheduleCommand, WritesEveryFormatToFile) {
  const test::TempDir dir;
  for (const auto& [format, beginning] :
       std::vector<std::pair<std::string, std::string>>{{"csv", "0F0,"},
                                                        {"grid", "1F1B: 2 ranks"},
                                                        {"svg", "<svg "},
                                                        {"html", "<!doctype html>"},
                                                        {"trace", "{\"displayTimeUnit\""}}) {
    const std::string path = dir / ("out." + format);
    const Outcome outcome =
        penstock({"schedule", "1F1B", "--ranks", "2", "--microbatches", "4", "--as", format, "-o", path});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_THAT(outcome.out, IsEmpty());
    EXPECT_THAT(test::slurp(path), StartsWith(beginning)) << format;
  }
}

TEST(ToolScheduleCommand, RejectsInvalidInputWithHintAndExitCode2) {
  const Outcome unknown = penstock({"schedule", "2F2B", "--ranks", "2", "--microbatches", "4"});
  EXPECT_EQ(unknown.code, 2);
  EXPECT_THAT(unknown.err, StartsWith("penstock: error: "));
  EXPECT_THAT(unknown.err, HasSubstr("1F1B"));
  EXPECT_EQ(penstock({"schedule", "1F1B", "--microbatches", "4"}).code, 2);
  EXPECT_EQ(penstock({"schedule"}).code, 2);
  EXPECT_EQ(penstock({"schedule", "1F1B", "--ranks", "0", "--microbatches", "4"}).code, 2);
  EXPECT_EQ(
      penstock({"schedule", "1F1B", "--ranks", "2", "--stages-per-rank", "2", "--microbatches", "4"}).code,
      2);
  EXPECT_EQ(penstock({"schedule", "1F1B", "--ranks", "99999999999", "--microbatches", "4"}).code, 2);
  EXPECT_EQ(penstock({"schedule", "1F1B", "--ranks", "2", "--microbatches", "4", "--as", "pdf"}).code, 2);
  EXPECT_EQ(penstock({"schedule", "1F1B", "--ranks", "64", "--microbatches", "900000000"}).code, 2);
  EXPECT_EQ(
      penstock({"schedule", "1F1B", "--ranks", "4", "--microbatches", "900000000000", "--rank", "0"}).code,
      2);
}

TEST(ToolPlanCommands, CountsOutOfRangeAreReportedAlike) {
  const auto error = [](std::vector<std::string> words) { return penstock(std::move(words)).err; };
  const std::string hint = "hint: use at least 1";
  const auto zero = testing::AllOf(HasSubstr("--ranks must be between 1 and 65535, not 0"), HasSubstr(hint));
  EXPECT_THAT(error({"schedule", "1F1B", "--ranks", "0", "--microbatches", "4"}), zero);
  EXPECT_THAT(error({"schedule", "1F1B", "--ranks", "0", "--microbatches", "4", "--rank", "0"}), zero);
  EXPECT_THAT(error({"simulate", "1F1B", "--ranks", "0", "--microbatches", "4"}), zero);
  EXPECT_THAT(error({"plan", "--ranks", "0", "--microbatches", "4"}), zero);
  const auto negative = testing::AllOf(HasSubstr("--microbatches must be between 1 and "),
                                       HasSubstr(", not -1"), HasSubstr(hint));
  EXPECT_THAT(error({"schedule", "1F1B", "--ranks", "2", "--microbatches", "-1"}), negative);
  EXPECT_THAT(error({"validate", "table.csv", "--microbatches", "-1"}), negative);
  EXPECT_THAT(error({"schedule", "1F1B", "--ranks", "4", "--microbatches", "4", "--rank", "4"}),
              testing::AllOf(HasSubstr("--rank must be between 0 and 3, not 4"), HasSubstr("use at most 3")));
}

TEST(ToolValidateCommand, AcceptsTableAndLoweredListOfEverySchedule) {
  const test::TempDir dir;
  for (const schedule::ScheduleInfo& info : schedule::schedule_infos()) {
    const schedule::Schedule schedule = make_schedule(info.kind, {4, info.default_stages_per_rank, 8});
    for (const std::string& text : {to_csv(schedule), to_csv(lower(schedule))}) {
      const Outcome outcome = penstock({"validate", write(dir, "schedule.csv", text)});
      EXPECT_EQ(outcome.code, 0) << info.name << outcome.out;
      EXPECT_THAT(outcome.out, HasSubstr(": valid: "));
    }
  }
}

TEST(ToolValidateCommand, ReportsRowColumnAndReason) {
  const test::TempDir dir;
  const json unreadable = parsed({"validate", write(dir, "a.csv", "0F0,0B0\n1F0,1Fxyz\n")}, 1);
  EXPECT_EQ(unreadable.at("valid"), false);
  EXPECT_EQ(unreadable.at("diagnostics").at(0).at("where"), "row 2, column 2");
  const json twice = parsed({"validate", write(dir, "b.csv", "0F0,0B0,0B0\n1F0,1B0\n")}, 1);
  EXPECT_FALSE(twice.at("diagnostics").empty());
  const Outcome missing =
      penstock({"validate", write(dir, "c.csv", "0F0,0B0\n1F0,1B0\n"), "--microbatches", "2"});
  EXPECT_EQ(missing.code, 1);
  EXPECT_EQ(penstock({"validate", dir / "nowhere.csv"}).code, 2);
  EXPECT_EQ(penstock({"validate"}).code, 2);
}

TEST(ToolValidateCommand, ReportsDeadlockAsCycle) {
  // Each rank sends before it receives: safe with buffered sends, a deadlock with blocking ones.
  const test::TempDir dir;
  const std::string path = write(dir, "cross.csv",
                                 "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
                                 "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n");
  const json verdict = parsed({"validate", path});
  EXPECT_EQ(verdict.at("modes").at("buffered").at("safe"), true);
  EXPECT_EQ(verdict.at("modes").at("blocking").at("safe"), false);
  const Outcome blocking = penstock({"validate", path, "--send-mode", "blocking"});
  EXPECT_EQ(blocking.code, 1);
  EXPECT_THAT(blocking.out, HasSubstr("->"));
  EXPECT_THAT(blocking.out, HasSubstr("0SEND_F1"));
}

TEST(ToolSimulateCommand, MatchesFormulasOfPapers) {
  const json result = parsed({"simulate", "1F1B", "ZB1P", "--ranks", "4", "--microbatches", "8"});
  EXPECT_EQ(result.at(0).at("step_time"), 33);
  EXPECT_NEAR(result.at(0).at("bubble").get<double>(), 3.0 / 11, 1e-12);
  EXPECT_EQ(result.at(1).at("step_time"), 27);
  EXPECT_EQ(result.at(0).at("per_rank").at(0).at("peak_memory"), 4);
  EXPECT_FALSE(result.at(0).at("critical_path").empty());
}

TEST(ToolSimulateCommand, ComparesStagesPerRankAndMicrobatchesOfOneBatch) {
  // Formulas: 1F1B takes (m+p-1)(F+B), Interleaved1F1B m(F+B) + (p-1)(F+B)/v. F+B is 3 for 4 microbatches,
  // and 3 * 4 / m for m microbatches of the same batch.
  const json result = parsed({"simulate", "1F1B", "Interleaved1F1B:2", "Interleaved1F1B:3", "--ranks", "4",
                              "--microbatches", "4,8,16"});
  ASSERT_EQ(result.size(), 9u);
  for (std::size_t i = 0; i < result.size(); ++i) {
    const int m = std::vector{4, 8, 16}[i % 3], v = static_cast<int>(i / 3) + 1;
    const double each = 3.0 * 4 / m;
    EXPECT_EQ(result[i].at("microbatches"), m);
    EXPECT_EQ(result[i].at("stages"), 4 * v);
    EXPECT_NEAR(result[i].at("step_time").get<double>(), m * each + 3 * each / v, 1e-9) << result[i];
  }
  const Outcome table =
      penstock({"simulate", "1F1B", "Interleaved1F1B:2", "--ranks", "4", "--microbatches", "4,16"});
  // 1F1B holds 4 microbatches, each a quarter as large with 16 of them. With 4, rank r idles 9-3r of 21-3r
  // units.
  EXPECT_EQ(table.out,
            "schedule         stages  microbatches  step time  bubble  own bubble  peak memory\n"
            "1F1B                  4             4         21   42.9%       24.0%            4\n"
            "1F1B                  4            16      14.25   15.8%        8.2%            1\n"
            "Interleaved1F1B       8             4       16.5   27.3%       14.6%            4\n"
            "Interleaved1F1B       8            16     13.125    8.6%        4.4%        1.375\n");
}

TEST(ToolSimulateCommand, ScalesCostFileWithMicrobatches) {
  const test::TempDir dir;
  const std::string costs = write(
      dir, "c.toml", "overhead = 0.1\nmicrobatches = 8\n[each]\nforward = 0.5\ninput = 0.5\nweight = 0.5\n");
  const json result =
      parsed({"simulate", "GPipe", "--ranks", "2", "--microbatches", "4,8", "--costs", costs});
  // An action of 0.5 s for 8 microbatches takes 0.1 + 2 * 0.4 s for 4.
  EXPECT_NEAR(result.at(0).at("step_time").get<double>(), (4 + 1) * (0.9 + 1.8), 1e-9);
  EXPECT_NEAR(result.at(1).at("step_time").get<double>(), (8 + 1) * (0.5 + 1.0), 1e-9);
}

TEST(ToolSimulateCommand, AllComparesEveryValidSchedule) {
  std::vector<std::string> expected;
  for (const schedule::ScheduleInfo& info : schedule::schedule_infos())
    if (info.has_backward && info.name != "DualPipeV") expected.emplace_back(info.name);
  const Outcome outcome = penstock({"simulate", "all", "--ranks", "4", "--microbatches", "4", "--json"});
  std::vector<std::string> names;
  for (const json& one : json::parse(outcome.out)) {
    names.push_back(one.at("name"));
    const bool several = names.back().starts_with("Interleaved") || names.back() == "LoopedBFS";
    if (several) {
      EXPECT_EQ(one.at("stages"), 8) << names.back();
    }
  }
  EXPECT_EQ(names, expected);
  // It needs as many microbatches as stages.
  EXPECT_THAT(outcome.err, HasSubstr("left out DualPipeV: DualPipeV needs at least as many microbatches"));
  EXPECT_EQ(parsed({"simulate", "all", "--ranks", "4", "--microbatches", "8"}).size(), expected.size() + 1);
}

TEST(ToolSimulateCommand, DrawsSchedulesOnCommonAxis) {
  const std::vector<std::string> words{"simulate",       "1F1B", "ZBVZeroBubble", "--ranks", "4",
                                       "--microbatches", "8"};
  const auto as = [&](const char* format) {
    std::vector<std::string> all = words;
    all.insert(all.end(), {"--as", format});
    const Outcome outcome = penstock(all);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return outcome.out;
  };
  const std::string svg = as("svg");
  EXPECT_THAT(svg, HasSubstr(">1F1B: 4 ranks, 4 stages, 8 microbatches<"));
  EXPECT_THAT(svg, HasSubstr(">ZBVZeroBubble: 4 ranks, 8 stages, 8 microbatches<"));
  std::vector<double> widths;  // of the lanes, in proportion to the step times
  const std::string lane = "class=\"lane\"";
  for (std::size_t at = 0; (at = svg.find(lane, at)) != std::string::npos; at += lane.size())
    widths.push_back(std::stod(svg.substr(svg.find("width=\"", at) + 7)));
  ASSERT_EQ(widths.size(), 8u);
  std::vector<std::string> asked = words;
  const json result = parsed(asked);
  EXPECT_NEAR(widths[4] / widths[0],
              result.at(1).at("step_time").get<double>() / result.at(0).at("step_time").get<double>(), 1e-4);
  const std::string html = as("html");
  EXPECT_THAT(html, HasSubstr("Comparison of 2 schedules"));
  EXPECT_THAT(html, HasSubstr("\"chunks\":[0,0,0,0,1,1,1,1]"));
  EXPECT_THAT(as("grid"), HasSubstr("7F0"));
  EXPECT_EQ(json::parse(as("trace")).count("traceEvents"), 1u);
}

TEST(ToolSimulateCommand, RejectsInvalidComparisons) {
  const auto error = [](std::vector<std::string> words) {
    const Outcome outcome = penstock(std::move(words));
    EXPECT_EQ(outcome.code, 2) << outcome.out;
    return outcome.err;
  };
  EXPECT_THAT(error({"simulate", "1F1B:2", "--ranks", "4", "--microbatches", "8"}),
              HasSubstr("1F1B requires exactly 1 stage per rank, not 2"));
  EXPECT_THAT(error({"simulate", "LoopedBFS:x", "--ranks", "4", "--microbatches", "8"}),
              HasSubstr("NAME:V, such as Interleaved1F1B:2"));
  EXPECT_THAT(error({"simulate", "1F1B", "--ranks", "4", "--microbatches", "8,x"}),
              HasSubstr("not an integer"));
  EXPECT_THAT(error({"simulate", "1F1B", "--ranks", "4", "--microbatches", "8,0"}), HasSubstr("not 0"));
  EXPECT_THAT(error({"simulate", "all", "--ranks", "0", "--microbatches", "8"}), HasSubstr("not 0"));
  EXPECT_THAT(error({"simulate", "all", "--microbatches", "8"}), HasSubstr("all needs --ranks"));
  EXPECT_THAT(error({"simulate", "all", "--ranks", "4", "--microbatches", "8", "--as", "csv"}),
              HasSubstr("only one schedule"));
}

TEST(ToolSimulateCommand, PrintsTimelineAsCsv) {
  const Outcome outcome =
      penstock({"simulate", "GPipe", "--ranks", "1", "--microbatches", "2", "--as", "csv"});
  EXPECT_THAT(outcome.out, StartsWith("rank,action,start,end\n"));
  for (const char* line : {"0,0F0,0,1\n", "0,0F1,1,2\n", "0,0B0,2,4\n", "0,0B1,4,6\n"})
    EXPECT_THAT(outcome.out, HasSubstr(line));
}

TEST(ToolSimulateCommand, ReadsTableAndLoweredFiles) {
  const test::TempDir dir;
  const schedule::Schedule schedule = schedule::make_schedule("ZB1P", {3, 1, 6});
  for (const std::string& text : {to_csv(schedule), to_csv(lower(schedule))}) {
    const json result = parsed({"simulate", write(dir, "mine.csv", text)});
    EXPECT_EQ(result.at(0).at("step_time"), 3 * 6 + 2);
  }
  const Outcome wrong = penstock({"simulate", write(dir, "wrong.csv", "0F0,0B0\n1F0\n")});
  EXPECT_EQ(wrong.code, 1);
  EXPECT_THAT(wrong.err, StartsWith("penstock: error: "));
}

TEST(ToolSimulateCommand, SimulatesLoweredSchedulesRejectedByReference) {
  // The reference's simulator raises "Unsupported action type 0UNSHARD" on these five.
  const test::TempDir dir;
  for (const char* name :
       {"Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV"}) {
    const Outcome lowered = penstock(
        {"schedule", name, "--ranks", "4", "--stages-per-rank", "2", "--microbatches", "8", "--lowered"});
    ASSERT_THAT(lowered.out, HasSubstr("UNSHARD")) << name;
    const std::string path = write(dir, "lowered.csv", lowered.out);
    const std::string costs =
        write(dir, "costs.toml",
              "[each]\noutput_bytes = 10\nunshard = 0.5\n[link]\nlatency = 0.1\nbandwidth = 20\n");
    double before = 0;
    for (const char* mode : {"buffered", "ordered", "blocking"}) {
      const json free = parsed({"simulate", path, "--send-mode", mode});
      const json paid = parsed({"simulate", path, "--send-mode", mode, "--costs", costs});
      EXPECT_GT(paid.at(0).at("step_time"), free.at(0).at("step_time"))
          << name << " " << mode << ": links cost";
      EXPECT_GE(paid.at(0).at("step_time").get<double>(), before - 1e-9)
          << name << ": a stricter mode is never faster";
      if (std::string(mode) == "buffered") before = paid.at(0).at("step_time");
    }
  }
}

TEST(ToolSimulateCommand, OverlapHidesConfiguredTime) {
  const test::TempDir dir;
  const auto time = [&](const char* overlap) {
    const std::string costs = write(dir, "costs.toml", std::string("overlap = ") + overlap + "\n");
    return parsed({"simulate", "DualPipeV", "--ranks", "4", "--microbatches", "12", "--costs", costs})
        .at(0)
        .at("step_time")
        .get<double>();
  };
  EXPECT_EQ(time("0.0"), 78);
  EXPECT_EQ(time("0.5"), 69);
  EXPECT_EQ(time("1.0"), 60);
}

TEST(ToolSimulateCommand, ReportsLocationOfCostFileErrors) {
  const test::TempDir dir;
  const auto error_output = [&](const std::string& text) {
    const Outcome outcome = penstock(
        {"simulate", "1F1B", "--ranks", "2", "--microbatches", "4", "--costs", write(dir, "c.toml", text)});
    EXPECT_EQ(outcome.code, 2) << text;
    return outcome.err;
  };
  EXPECT_THAT(error_output("[each]\nforwards = 1\n"), HasSubstr("line 2"));
  EXPECT_THAT(error_output("[each]\nforwards = 1\n"), HasSubstr("did you mean forward?"));
  EXPECT_THAT(error_output("[each]\nforward = -1\n"), HasSubstr("non-negative"));
  EXPECT_THAT(error_output("[each\n"), HasSubstr("line 1"));
  EXPECT_THAT(error_output("[[stages]]\nforward = 1\n"), HasSubstr("1 stages"));
  EXPECT_THAT(error_output("[link]\nbandwidth = \"fast\"\n"), HasSubstr("not a valid number of bytes"));
  EXPECT_THAT(error_output("[link]\nbandwidth = 0\n"), HasSubstr("bandwidth"));
  EXPECT_THAT(error_output("overlap = 2.0\n"), HasSubstr("between 0 and 1"));
  EXPECT_EQ(
      penstock({"simulate", "1F1B", "--ranks", "2", "--microbatches", "4", "--costs", dir / "nowhere.toml"})
          .code,
      2);
}

TEST(ToolSimulateCommand, RejectsTooDeepTooManyOrTooLargeCosts) {
  const test::TempDir dir;
  const auto error_output = [&](const std::string& text) {
    const Outcome outcome = penstock(
        {"simulate", "1F1B", "--ranks", "2", "--microbatches", "4", "--costs", write(dir, "c.toml", text)});
    EXPECT_EQ(outcome.code, 2) << text.substr(0, 100);
    return outcome.err;
  };
  EXPECT_THAT(error_output("a = " + std::string(200'000, '[')), HasSubstr("nested value depth"));
  std::string key = "a", spaced = "\"a\"";
  for (int i = 0; i < 200'000; ++i) key += ".a", spaced += " . \"a\"";
  EXPECT_THAT(error_output(key + " = 1\n"), HasSubstr("line 1: a key has more than 16 parts"));
  EXPECT_THAT(error_output("[each]\n[" + key + "]\n"), HasSubstr("line 2: a key has more than 16 parts"));
  EXPECT_THAT(error_output("[" + spaced + "]\n"), HasSubstr("a key has more than 16 parts"));
  std::string stages;
  for (int i = 0; i < 60; ++i) stages += "[[stages]]\ncount = 1000000\n";
  EXPECT_THAT(error_output(stages), HasSubstr("at most 65535"));
  EXPECT_THAT(error_output("[each]\nforward = 1e308\n"), HasSubstr("forward must be at most 1e18"));
  EXPECT_THAT(error_output("[each]\nactivation_bytes = 1e15\n"), HasSubstr("must be at most 1e14 bytes"));
  EXPECT_THAT(error_output("[each]\nactivation_bytes = \"1000000000TiB\"\n"),
              HasSubstr("not a valid number of bytes"));
  EXPECT_THAT(error_output("[each]\noutput_bytes = 1e14\n[link]\nbandwidth = 1e-300\n"),
              HasSubstr("the sum of the times overflows"));
  EXPECT_THAT(error_output("overhead = 1e308\n"), HasSubstr("at most 1e18"));
}

TEST(ToolSimulateCommand, LargestCostsGiveFiniteTimes) {
  const test::TempDir dir;
  const json result =
      parsed({"simulate", "1F1B", "--ranks", "2", "--microbatches", "4", "--costs",
              write(dir, "c.toml", "[each]\nforward = 1e18\nbackward = 1e18\nactivation_bytes = 1e14\n")});
  EXPECT_DOUBLE_EQ(result.at(0).at("step_time").get<double>(), 1e19);
}

TEST(ToolInputFiles, MustBeRegularFiles) {
  const test::TempDir dir;
  ASSERT_EQ(::mkfifo((dir / "fifo.csv").c_str(), 0600), 0);
  for (const auto& [path, kind] :
       {std::pair<std::string, std::string>{dir / "fifo.csv", "a FIFO"}, {"/dev/zero", "a device"}}) {
    const Outcome costs =
        penstock({"simulate", "1F1B", "--ranks", "2", "--microbatches", "4", "--costs", path});
    EXPECT_EQ(costs.code, 2);
    EXPECT_THAT(costs.err, HasSubstr("it is " + kind + ", not a regular file"));
    const Outcome schedule = penstock({"validate", path});
    EXPECT_EQ(schedule.code, 2);
    EXPECT_THAT(schedule.err, HasSubstr("it is " + kind + ", not a regular file"));
  }
  const Outcome folder = penstock({"validate", dir.path()});
  EXPECT_EQ(folder.code, 2);
  EXPECT_THAT(folder.err, HasSubstr("is a directory, not a file"));
}

TEST(ToolPlanCommand, RanksPlansForExampleFile) {
  const std::string costs = PENSTOCK_SOURCE_DIR "/examples/costs.toml";
  const json plans =
      parsed({"plan", "--ranks", "4", "--microbatches", "16", "--costs", costs, "--memory-cap", "12GiB"});
  EXPECT_EQ(plans.at(0).at("verdict"), "best");
  EXPECT_EQ(plans.at(0).at("first_layer").back(), 26);
  EXPECT_LE(plans.at(0).at("peak_memory").get<double>(), 12.0 * (1 << 30));
  const Outcome text = penstock(
      {"plan", "--ranks", "4", "--microbatches", "16", "--costs", costs, "--schedules", "1F1B,ZB1P"});
  EXPECT_EQ(text.code, 0);
  EXPECT_THAT(text.out, HasSubstr("stage 0 on rank 0: embedding to block."));
}

TEST(ToolPlanCommand, SavesValidSchedule) {
  const test::TempDir dir;
  EXPECT_EQ(penstock({"plan", "--ranks", "3", "--microbatches", "6", "--save", dir / "best.csv"}).code, 0);
  EXPECT_EQ(penstock({"validate", dir / "best.csv", "--microbatches", "6"}).code, 0);
}

TEST(ToolPlanCommand, ReportsThatNothingFits) {
  const std::string costs = PENSTOCK_SOURCE_DIR "/examples/costs.toml";
  const Outcome outcome = penstock({"plan", "--ranks", "4", "--microbatches", "16", "--costs", costs,
                                    "--memory-cap", "1MiB", "--schedules", "1F1B,Auto"});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.out, HasSubstr("nothing fits"));
  EXPECT_THAT(outcome.out, HasSubstr("does not fit: needs"));
  EXPECT_EQ(penstock({"plan", "--ranks", "4"}).code, 2);
  EXPECT_EQ(penstock({"plan", "--ranks", "4", "--microbatches", "8", "--schedules", "1F1B",
                      "--stages-per-rank", "2"})
                .code,
            2);
  EXPECT_EQ(penstock({"plan", "--ranks", "4", "--microbatches", "x"}).code, 2);
  EXPECT_EQ(penstock({"plan", "--ranks", "4", "--microbatches", "8", "--memory-cap", "much"}).code, 2);
}

}  // namespace
}  // namespace penstock::plan
