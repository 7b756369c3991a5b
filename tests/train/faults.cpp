// Starting runs that fail.
#include "faults.h"

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <random>
#include <set>
#include <sstream>

namespace penstock::test {
namespace fs = std::filesystem;
namespace {

// Segments of shared memory; those that name a living process belong to a test beside this one.
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

// What must not be there once a run is over.
std::string left_behind(const std::string& directory, const std::set<std::string>& shared_before, bool well) {
  std::string left = processes_with(directory);
  for (const auto& entry : fs::directory_iterator(directory + "/tmp")) left += entry.path().string() + "\n";
  for (const std::string& name : shared_memory())
    if (!shared_before.contains(name)) left += "/dev/shm/" + name + "\n";
  if (!well || !fs::exists(directory + "/saved")) return left;
  for (const auto& entry : fs::directory_iterator(directory + "/saved"))
    if (entry.path().extension() == ".incomplete") left += entry.path().string() + "\n";
  return left;
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

FaultRun run_with_faults(const std::string& faults, const std::vector<std::string>& words,
                         const std::string& directory, const std::vector<std::string>& settings) {
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
  for (const std::string& word : words) {  // these win
    const std::string name = word.substr(0, word.find('=') + 1);
    std::erase_if(line, [&](const std::string& old) { return old.starts_with(name); });
    line.push_back(word);
  }
  std::vector<std::string> all{"PENSTOCK_FAULT=" + faults, "TMPDIR=" + directory + "/tmp"};
  all.insert(all.end(), settings.begin(), settings.end());
  const std::set<std::string> shared_before = shared_memory();
  const auto start = std::chrono::steady_clock::now();
  FaultRun run;
  run.outcome = run_program(line, all);
  run.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  run.losses = losses_of(log);
  run.left = left_behind(directory, shared_before, run.outcome.code == 0);
  return run;
}

double bound(int faults, const FaultRun& quiet) {
  constexpr double promise = 30, room = 3;
  return promise * faults + room * quiet.seconds * (faults + 1);
}

void soak(unsigned seed, int runs, int each) {
  std::printf("seed %u\n", seed);
  std::mt19937 random(seed);
  const auto pick = [&](const std::vector<std::string>& list) { return list[random() % list.size()]; };
  const TempDir dir;
  const std::vector<std::string> more{"--steps=12", "--timeout=5"}, settings{"PENSTOCK_HEARTBEAT=5"};
  const FaultRun quiet = run_with_faults("", more, dir / "quiet");
  ASSERT_EQ(quiet.outcome.code, 0) << quiet.outcome.err;
  for (int run = 0; run < runs; ++run) {
    std::string faults;
    for (int attempt = 0; attempt < each; ++attempt) {
      const int rank = static_cast<int>(random() % 2);
      const std::string stage = std::to_string(rank);
      const std::string place =
          pick({"action=" + stage + "F0", "action=" + stage + "F1", "action=" + stage + "B0",
                "action=" + stage + "B1", rank == 0 ? "action=0SEND_F1" : "action=1SEND_B1", "at=setup",
                "at=start", "at=step", "at=update", "at=checkpoint", "at=end"});
      const bool whole = place == "at=setup" || place == "at=start" || place == "at=end";
      const std::string step = whole ? "" : " step=" + std::to_string(2 * (1 + random() % 6));
      std::string kind = pick({"kill", "kill", "exit", "throw", "throw", "stop", "stall", "cut"});
      if (kind == "cut" && place == "at=start") kind = "kill";  // there is nothing to cut yet
      faults += kind + " rank=" + stage + step + " " + place + " attempt=" + std::to_string(attempt) + ";";
    }
    SCOPED_TRACE(faults);
    std::vector<std::string> words = more;
    words.push_back("--max-restarts=" + std::to_string(each));
    const FaultRun result = run_with_faults(faults, words, dir / std::to_string(run), settings);
    EXPECT_EQ(result.outcome.code, 0) << result.outcome.err;
    EXPECT_EQ(result.losses, quiet.losses);
    EXPECT_EQ(result.left, "");
    EXPECT_LT(result.seconds, bound(each, quiet)) << result.outcome.err;
    std::printf("run %d of %d: %d faults in %.0f s\n", run + 1, runs, each, result.seconds);
    std::fflush(stdout);
  }
}

}  // namespace penstock::test
