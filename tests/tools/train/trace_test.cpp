// The trace of a run: the predicted and the measured step of each rank, with the memory of both.
#include "support/program.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <map>
#include <regex>
#include <string>
#include <vector>

namespace penstock::test {
namespace {

// One process of a trace.
struct Track {
  std::map<std::string, double> ends;             // of actions, by name
  std::vector<std::pair<double, double>> memory;  // time, bytes

  double bytes_after(const std::string& action) const {
    const double end = ends.at(action);
    for (const auto& [time, bytes] : memory)
      if (std::abs(time - end) < 1e-3) return bytes;  // both are in microseconds, rounded to 12 digits
    ADD_FAILURE() << "no memory at the end of " << action;
    return 0;
  }
};

// By the name of the process, such as `rank 0 (measured)`.
std::map<std::string, Track> tracks_of(const std::string& text) {
  std::map<int, std::string> names;
  std::map<std::string, Track> tracks;
  const auto trace = nlohmann::json::parse(text);
  for (const auto& event : trace.at("traceEvents")) {
    const int process = event.at("pid");
    if (event.at("name") == "process_name") names[process] = event.at("args").at("name");
    Track& track = tracks[names.at(process)];
    if (event.at("ph") == "X")
      track.ends[event.at("name")] = event.at("ts").get<double>() + event.at("dur").get<double>();
    if (event.at("ph") == "C") track.memory.emplace_back(event.at("ts"), event.at("args").at("bytes"));
  }
  return tracks;
}

// The values of a key of a cost file, by stage.
std::vector<double> costs_of(const std::string& text, const std::string& key) {
  const std::regex line("\n" + key + " = ([0-9]+)");
  std::vector<double> values;
  for (std::sregex_iterator it(text.begin(), text.end(), line), end; it != end; ++it)
    values.push_back(std::stod((*it)[1]));
  return values;
}

// What a forward pass keeps was counted in the second step (--profile), the memory in the last one. GPipe
// runs all forward passes first. The ranks are processes, so that each has its own heap. The bounds leave
// room for messages, and for the loss, which the profile does not count.
TEST(ToolTrainTrace, MeasuredMemoryRisesAndFallsByProfiledActivations) {
  const TempDir dir;
  const Outcome outcome =
      run_program({PENSTOCK_TOOL, "train", "--ranks=2", "--schedule=GPipe", "--microbatches=4", "--steps=3",
                   "--layers=4", "--width=64", "--heads=2", "--seq=128", "--batch=16", "--sample=0",
                   "--trace=" + (dir / "t.json"), "--profile=" + (dir / "costs.toml")});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const std::map<std::string, Track> tracks = tracks_of(slurp(dir / "t.json"));
  const std::string costs = slurp(dir / "costs.toml");
  const auto activations = costs_of(costs, "activation_bytes"), gradients = costs_of(costs, "gradient_bytes");
  ASSERT_EQ(activations.size(), 2U);
  ASSERT_EQ(gradients.size(), 2U);
  ASSERT_EQ(tracks.size(), 4U);
  for (std::size_t rank = 0; rank < 2; ++rank) {
    const std::string name = "rank " + std::to_string(rank), stage = std::to_string(rank);
    SCOPED_TRACE(name);
    EXPECT_GT(tracks.at(name + " (predicted)").memory.size(), 2U);
    const Track& measured = tracks.at(name + " (measured)");
    EXPECT_EQ(measured.memory.size(), measured.ends.size() + 1);  // at the start, and after each action
    EXPECT_TRUE(std::is_sorted(measured.memory.begin(), measured.memory.end(),
                               [](const auto& a, const auto& b) { return a.first < b.first; }));
    EXPECT_EQ(measured.memory.front().first, 0);
    const double kept = activations[rank];
    for (const int microbatch : {0, 1, 2}) {
      const auto after = [&](int m) { return measured.bytes_after(stage + "F" + std::to_string(m)); };
      EXPECT_NEAR(after(microbatch + 1) - after(microbatch), kept, 0.15 * kept) << microbatch;
    }
    const double full = measured.bytes_after(stage + "F3"), start = measured.memory.front().second;
    EXPECT_NEAR(full - start, 4 * kept, 0.15 * 4 * kept);
    EXPECT_NEAR(full - measured.memory.back().second, 4 * kept - gradients[rank], 0.15 * 4 * kept);
  }
}

}  // namespace
}  // namespace penstock::test
