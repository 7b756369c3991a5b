// Runs examples/fine_tune.cpp on models that Python exports where the test runs.
#include "support/program.h"
#include "trained_models.h"

#include <penstock/checkpoint/safetensors.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace penstock::test {
namespace {

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

void expect_fine_tuning(const std::string& name, const std::vector<std::string>& arguments,
                        std::int64_t classes) {
  SCOPED_TRACE(name);
  const TrainedModel model(name);
  const TempDir folder;
  std::map<std::string, at::Tensor> data{{"target", model.at("target").flatten(0, 1)}};
  for (std::size_t k = 0; k < arguments.size(); ++k)
    data[arguments[k]] = model.at("x." + std::to_string(k)).flatten(0, 1);
  checkpoint::save_safetensors(folder / "data.safetensors", data);
  const Outcome outcome =
      run_program({PENSTOCK_EXAMPLE, model.file, folder / "data.safetensors", folder / "out.pt"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const std::vector<double> losses = losses_in(outcome.out);
  ASSERT_EQ(losses.size(), 20U) << outcome.out;
  // Guessing costs log(classes).
  EXPECT_LT(losses.back(), 0.8 * std::log(static_cast<double>(classes))) << outcome.out;
  EXPECT_LT(losses.back(), losses.front()) << outcome.out;
  EXPECT_GT(slurp(folder / "out.pt").size(), 1000U);
}

TEST(GraphFineTuneExample, FineTunesResNet) {
  SKIP_WITHOUT_PYTHON();
  expect_fine_tuning("resnet", {"x"}, 4);
}

TEST(GraphFineTuneExample, FineTunesEncoder) {
  SKIP_WITHOUT_PYTHON();
  expect_fine_tuning("bert_dropout", {"tokens", "mask"}, 19);
}

TEST(GraphFineTuneExample, ReportsMissingModel) {
  const Outcome outcome = run_program({PENSTOCK_EXAMPLE, "missing.pt2", "missing.safetensors"});
  EXPECT_NE(outcome.code, 0);
  EXPECT_THAT(outcome.err, testing::HasSubstr("'missing.pt2' does not exist"));
}

}  // namespace
}  // namespace penstock::test
