// The process harness and the `main` of test programs that use it.
#include "support/process_ranks.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstdlib>
#include <filesystem>
#include <iostream>

namespace penstock::test {
namespace {

std::map<std::string, std::function<int()>>& functions() {
  static std::map<std::string, std::function<int()>> all;
  return all;
}

}  // namespace

RankFunction::RankFunction(const char* name, std::function<int()> body) {
  functions()[name] = std::move(body);
}

std::string RanksOutcome::text() const {
  std::string text = to_string(result);
  for (std::size_t rank = 0; rank < lines.size(); ++rank) {
    for (const std::string& line : lines[rank]) text += "[" + std::to_string(rank) + "] " + line + "\n";
  }
  return text;
}

RanksOutcome run_process_ranks(const std::string& function, int ranks, const RanksOptions& options) {
  RanksOutcome outcome;
  outcome.lines.resize(static_cast<std::size_t>(ranks));
  comm::LaunchOptions launch_options;
  launch_options.command = {std::filesystem::read_symlink("/proc/self/exe").string()};
  launch_options.ranks = ranks;
  launch_options.deadline = options.deadline;
  launch_options.max_restarts = options.max_restarts;
  launch_options.environment = options.environment;
  launch_options.environment["PENSTOCK_TEST_RANKS"] = function;
  launch_options.pass_signals = false;
  launch_options.on_start = options.on_start;
  launch_options.on_line = [&](Rank rank, comm::OutputStream stream, std::string_view line) {
    outcome.lines[rank.index()].emplace_back(line);
    if (options.on_line) options.on_line(rank, stream, line);
  };
  outcome.result = launch(launch_options);
  return outcome;
}

}  // namespace penstock::test

int main(int argc, char** argv) {
  if (const char* name = std::getenv("PENSTOCK_TEST_RANKS")) {
    const rlimit none{0, 0};
    setrlimit(RLIMIT_CORE, &none);  // ranks crash on purpose
    const auto& all = penstock::test::functions();
    const auto found = all.find(name);
    if (found == all.end()) {
      std::cerr << "no rank function is called " << name << "\n";
      return 2;
    }
    return found->second();
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
