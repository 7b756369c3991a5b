// A run of the GPT that takes seconds.
#pragma once

#include "support/lines.h"
#include "support/program.h"

#include <nlohmann/json.hpp>

#include <string>
#include <vector>

namespace penstock::test {

//! The words of the command. They must not repeat an option.
inline std::vector<std::string> small_gpt(const std::vector<std::string>& more) {
  std::vector<std::string> words{PENSTOCK_TOOL, "train",   "--layers=2", "--width=16",
                                 "--heads=2",   "--seq=8", "--sample=0", "--validation=0.1"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

//! The objects of a log, one per step.
inline std::vector<nlohmann::json> log_of(const std::string& path) {
  std::vector<nlohmann::json> log;
  for (const std::string& line : lines_of(slurp(path))) log.push_back(nlohmann::json::parse(line));
  return log;
}

}  // namespace penstock::test
