// Runs `penstock train` with injected faults.
#include "tools/train/fault_injection.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <map>
#include <random>
#include <set>
#include <sstream>
#include <thread>

namespace penstock::test {
namespace fs = std::filesystem;
namespace {

// Shared memory segments; those that name a running process belong to a concurrent test.
std::set<std::string> shared_memory() {
  std::set<std::string> names;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator("/dev/shm", none)) {
    std::string name = entry.path().filename().string(), words = name;
    for (char& c : words)
      if (c < '0' || c > '9') c = ' ';
    std::istringstream numbers(words);
    bool lives = false;
    for (std::string number; numbers >> number;) lives = lives || fs::exists("/proc/" + number);
    if (name.find("penstock") != std::string::npos && !lives) names.insert(name);
  }
  return names;
}

// Processes and files that must not remain after a run.
std::string left_behind(const std::string& directory, bool well) {
  std::string left =
      processes_with(directory + "/");  // not those of a directory whose name starts with this one
  for (const auto& entry : fs::directory_iterator(directory + "/tmp")) left += entry.path().string() + "\n";
  if (!well || !fs::exists(directory + "/saved")) return left;
  for (const auto& entry : fs::directory_iterator(directory + "/saved"))
    if (entry.path().extension() == ".incomplete") left += entry.path().string() + "\n";
  return left;
}

FaultRun run_one(const FaultCase& fault) {
  const std::string& directory = fault.directory;
  fs::create_directories(directory + "/tmp");
  const std::string log = directory + "/log";
  std::vector<std::string> line{PENSTOCK_TOOL,
                                "train",
                                "--steps=6",
                                "--layers=2",
                                "--width=8",
                                "--heads=1",
                                "--seq=6",
                                "--batch=4",
                                "--microbatches=2",
                                "--sample=0",
                                "--checkpoint-every=2",
                                "--checkpoint=" + directory + "/saved",
                                "--log-json=" + log};
  for (const std::string& word : fault.words) {  // these take precedence
    const std::string name = word.substr(0, word.find('=') + 1);
    std::erase_if(line, [&](const std::string& old) { return old.starts_with(name); });
    line.push_back(word);
  }
  const auto start = std::chrono::steady_clock::now();
  FaultRun run;
  run.outcome = run_program(line, {"PENSTOCK_FAULT=" + fault.faults, "TMPDIR=" + directory + "/tmp"});
  run.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  run.losses = losses_of(log);
  run.left = left_behind(directory, run.outcome.code == 0);
  return run;
}

}  // namespace

std::string processes_with(const std::string& text) {
  std::string found;
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const std::string name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos || name == std::to_string(getpid()))
      continue;
    if (slurp(entry.path().string() + "/cmdline").find(text) != std::string::npos)
      found += "process " + name + "\n";
  }
  return found;
}

std::vector<std::string> losses_of(const std::string& log) {
  std::vector<std::string> losses;
  std::istringstream lines(slurp(log));
  for (std::string text; std::getline(lines, text);) {
    const auto at = text.find("\"loss\":") + 7;
    losses.push_back(text.substr(at, text.find(',', at) - at));
  }
  return losses;
}

std::vector<FaultRun> run_with_faults(const std::vector<FaultCase>& cases, std::size_t at_once) {
  const std::set<std::string> shared_before = shared_memory();
  std::vector<FaultRun> runs(cases.size());
  std::atomic<std::size_t> next = 0;
  {
    std::vector<std::jthread> threads;
    for (std::size_t i = 0; i < std::min(at_once, cases.size()); ++i)
      threads.emplace_back([&] {
        for (std::size_t mine = next++; mine < cases.size(); mine = next++) runs[mine] = run_one(cases[mine]);
      });
  }
  // Its owner is unknown.
  for (const std::string& name : shared_memory())
    if (!shared_before.contains(name)) runs.front().left += "/dev/shm/" + name + "\n";
  return runs;
}

FaultRun run_with_faults(const std::string& faults, const std::vector<std::string>& words,
                         const std::string& directory) {
  return run_with_faults({{faults, words, directory}}, 1).front();
}

double bound(int faults, const FaultRun& fault_free) {
  constexpr double promise = 30, room = 3;
  return promise * faults + room * fault_free.seconds * (faults + 1);
}

void soak(unsigned seed, int runs, int each) {
  std::printf("seed %u\n", seed);
  std::mt19937 random(seed);
  const auto pick = [&](const std::vector<std::string>& list) { return list[random() % list.size()]; };
  const TempDir dir;
  // A stalled rank is detected only by --timeout, also before it has joined the others.
  const std::vector<std::string> more{"--steps=12", "--timeout=20", "--max-restarts=" + std::to_string(each)};
  std::vector<FaultCase> cases{{"", more, dir / "fault_free"}};
  for (int run = 0; run < runs; ++run) {
    // In the order of their steps, so that each fault occurs: a run does not return to an earlier step.
    constexpr int steps = 12, end = steps + 1;
    std::multimap<int, std::string> faults;
    for (int i = 0; i < each; ++i) {
      const int rank = static_cast<int>(random() % 2), step = 2 * (1 + static_cast<int>(random() % 6));
      const std::string stage = std::to_string(rank);
      const std::string location =
          pick({"action=" + stage + "F0", "action=" + stage + "F1", "action=" + stage + "B0",
                "action=" + stage + "B1", rank == 0 ? "action=0SEND_F1" : "action=1SEND_B1", "at=setup",
                "at=start", "at=step", "at=update", "at=checkpoint", "at=end"});
      std::string kind = pick({"kill", "kill", "exit", "throw", "throw", "stop", "stall", "cut"});
      if (kind == "cut" && location == "at=start") kind = "kill";  // there is no connection to break yet
      const bool without_step = location == "at=setup" || location == "at=start" || location == "at=end";
      const std::string fault = kind + " rank=" + stage + " " + location;
      faults.emplace(location == "at=end" ? end : step,
                     without_step ? fault : fault + " step=" + std::to_string(step));
    }
    std::string text;
    int attempt = 0;
    for (const auto& [step, fault] : faults) text += fault + " attempt=" + std::to_string(attempt++) + "; ";
    std::vector<std::string> words = more;
    if (text.find("cut ") != std::string::npos)
      words.emplace_back("--backend=gloo");  // shm has no connections
    cases.push_back({text, words, dir / std::to_string(run)});
  }
  const std::vector<FaultRun> results = run_with_faults(cases, kAtOnce);
  const FaultRun& fault_free = results.front();
  ASSERT_EQ(fault_free.outcome.code, 0) << fault_free.outcome.err;
  ASSERT_EQ(fault_free.losses.size(), 12U);
  for (std::size_t run = 1; run < results.size(); ++run) {
    SCOPED_TRACE(cases[run].faults);
    const FaultRun& result = results[run];
    EXPECT_EQ(result.outcome.code, 0) << result.outcome.err;
    EXPECT_EQ(result.losses, fault_free.losses);
    EXPECT_EQ(result.left, "");
    const std::string all = std::to_string(each);
    EXPECT_NE(result.outcome.err.find("restarting (" + all + " of " + all + ")"), std::string::npos)
        << "not every fault was met: " << result.outcome.err;
    EXPECT_LT(result.seconds, bound(each, fault_free)) << result.outcome.err;
    std::printf("run %zu of %d: %d faults in %.0f s\n", run, runs, each, result.seconds);
  }
}

}  // namespace penstock::test
