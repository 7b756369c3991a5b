// Starting runs that fail.
#include "faults.h"

#include <chrono>
#include <filesystem>
#include <sstream>
#include <thread>

namespace penstock::test {
namespace fs = std::filesystem;

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

FaultRun run_with_faults(const std::string& faults, const std::vector<std::string>& words,
                         const std::string& directory) {
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
  const auto start = std::chrono::steady_clock::now();
  FaultRun run;
  run.outcome = run_program(line, {"PENSTOCK_FAULT=" + faults, "TMPDIR=" + directory + "/tmp"});
  run.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  std::istringstream lines(slurp(log));
  for (std::string text; std::getline(lines, text);) {
    const auto at = text.find("\"loss\":") + 7;
    run.losses.push_back(text.substr(at, text.find(',', at) - at));
  }
  run.left = processes_with(directory);
  for (const auto& entry : fs::directory_iterator(directory + "/tmp"))
    run.left += entry.path().string() + "\n";
  return run;
}

}  // namespace penstock::test
