// The data-parallel example, whose losses do not depend on the number of ranks or their launcher.
#pragma once

#include "support/program.h"

#include <gtest/gtest.h>

#include <regex>
#include <string>
#include <vector>

namespace penstock::test {

inline const std::string kDdp = PENSTOCK_EXAMPLES "/example_ddp";

//! All numbers that follow `step N … loss ` in the text.
inline std::vector<double> losses_in(const std::string& text) {
  std::vector<double> losses;
  const std::regex line("step [0-9/]+ +loss ([0-9.]+)");
  for (auto it = std::sregex_iterator(text.begin(), text.end(), line); it != std::sregex_iterator(); ++it)
    losses.push_back(std::stod((*it)[1]));
  return losses;
}

//! The losses of the example in one process.
inline const std::vector<double>& losses_alone() {
  static const std::vector<double> losses = losses_in(run_program({kDdp}, {"OMP_NUM_THREADS=1"}).out);
  return losses;
}

//! Expects that one rank, and only one, has printed the losses.
inline void expect_losses(const std::string& text, const std::vector<double>& expected) {
  const std::vector<double> losses = losses_in(text);
  ASSERT_FALSE(expected.empty());
  ASSERT_EQ(losses.size(), expected.size()) << text;
  for (std::size_t i = 0; i < losses.size(); ++i) EXPECT_NEAR(losses[i], expected[i], 1e-3) << text;
}

inline int count(const std::string& text, const std::string& part) {
  int found = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

}  // namespace penstock::test
