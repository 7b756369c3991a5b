// Runs examples/fine_tune.cpp on the models and data that examples/exported/make_classifiers.py writes.
#include "support/python.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace penstock::test {
namespace {

//! The folder with the models and data, which are made once per program. Empty if PENSTOCK_PYTHON names no
//! Python with torch 2.13, numpy and safetensors.
const std::string& classifiers() {
  static const TempDir folder;
  static const std::string path = [] {
    const std::string python = python_with_torch();
    if (python.empty() || run_program({python, "-c", "import numpy, safetensors"}).code != 0)
      return std::string();
    const Outcome made =
        run_program({python, "-B", "-W", "ignore",
                     PENSTOCK_SOURCE_DIR "/examples/exported/make_classifiers.py", folder.path()});
    if (made.code != 0) throw std::runtime_error("make_classifiers.py failed: " + made.err);
    return folder.path();
  }();
  return path;
}

//! The losses that the example prints, by epoch.
std::vector<double> losses_in(const std::string& text) {
  std::vector<double> losses;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t at = line.find(" loss ");
    if (at != std::string::npos) losses.push_back(std::stod(line.substr(at + 6)));
  }
  return losses;
}

void expect_fine_tuning(const std::string& name, int classes) {
  SCOPED_TRACE(name);
  const TempDir folder;
  const std::string model = classifiers() + "/" + name;
  const Outcome outcome =
      run_program({PENSTOCK_EXAMPLE, model + ".pt2", model + ".safetensors", folder / "out.pt"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const std::vector<double> losses = losses_in(outcome.out);
  ASSERT_EQ(losses.size(), 20U) << outcome.out;
  // Guessing costs log(classes).
  EXPECT_LT(losses.back(), 0.5 * std::log(static_cast<double>(classes))) << outcome.out;
  EXPECT_LT(losses.back(), losses.front()) << outcome.out;
  EXPECT_GT(slurp(folder / "out.pt").size(), 1000U);
}

TEST(GraphFineTuneExample, FineTunesResNet) {
  if (classifiers().empty()) GTEST_SKIP() << "PENSTOCK_PYTHON lacks torch 2.13, numpy or safetensors";
  expect_fine_tuning("resnet", 4);
}

TEST(GraphFineTuneExample, FineTunesEncoder) {
  if (classifiers().empty()) GTEST_SKIP() << "PENSTOCK_PYTHON lacks torch 2.13, numpy or safetensors";
  expect_fine_tuning("bert", 19);
}

TEST(GraphFineTuneExample, ReportsMissingModel) {
  const Outcome outcome = run_program({PENSTOCK_EXAMPLE, "missing.pt2", "missing.safetensors"});
  EXPECT_NE(outcome.code, 0);
  EXPECT_THAT(outcome.err, testing::HasSubstr("'missing.pt2' does not exist"));
}

}  // namespace
}  // namespace penstock::test
