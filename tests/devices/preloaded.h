// The real programs with simulated devices, which a preloaded library adds. Ranks are processes.
#pragma once

#include "support/lines.h"
#include "support/program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <string>
#include <vector>

namespace penstock::test {

inline Outcome with_devices(int count, std::vector<std::string> words,
                            std::vector<std::string> environment = {}) {
  words.insert(words.begin(), PENSTOCK_TOOL);
  environment.emplace_back("LD_PRELOAD=" SIMULATED_DEVICES);
  environment.push_back("PENSTOCK_SIMULATED_DEVICES=" + std::to_string(count));
  return run_program(words, environment);
}

inline std::vector<std::string> small_gpt(std::vector<std::string> more) {
  std::vector<std::string> words{"train",      "--steps=4",        "--batch=4", "--seq=16",   "--layers=2",
                                 "--width=16", "--microbatches=2", "--heads=2", "--sample=10"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

inline std::vector<double> losses_of(const std::string& log) {
  std::vector<double> losses;
  for (const std::string& line : lines_of(slurp(log)))
    losses.push_back(nlohmann::json::parse(line)["loss"].get<double>());
  return losses;
}

// A CUDA build of libtorch ignores the preloaded library.
class DevicesTool : public testing::Test {
 protected:
  void SetUp() override {
    const Outcome outcome = penstock(small_gpt({"--dry-run", "--device=cuda"}));
    if (outcome.err.find("this libtorch has no CUDA support") == std::string::npos)
      GTEST_SKIP() << "this libtorch has a CUDA of its own";
  }
};

}  // namespace penstock::test
