// Errors of a run: their step and cause, and where non-finite values come from.
#include "support/error_message.h"
#include "train/archive_losses.h"

#include <penstock/base/error.h>

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

namespace penstock::train {
namespace {

using schedule::ScheduleKind;
using testing::AllOf;
using testing::HasSubstr;

std::string error_of(const std::string& model, const Tensors& data, const RunOptions& options) {
  return test::error_message([&] { run_archive(model, data, options); });
}

TEST(TrainError, NamesStepAndNestsCause) {
  at::set_num_threads(1);
  Tensors data = checkpoint::load_safetensors(archive("mlp.safetensors"));
  data["input"] = data.at("input").clone().fill_(std::numeric_limits<float>::quiet_NaN());
  try {
    run_archive("mlp", data, sgd({.pp = 2, .schedule = ScheduleKind::OneFOneB, .microbatches = 4}, 8));
    FAIL() << "nothing was thrown";
  } catch (const RunError& error) {
    EXPECT_EQ(error.step(), 1);
    EXPECT_THAT(error.message(), testing::StartsWith("step 1: "));
    EXPECT_ERROR(std::rethrow_if_nested(error), Error,
                 error.message().substr(std::string("step 1: ").size()));
  }
}

TEST(TrainError, IsStorageErrorIfLogCannotBeWritten) {
  at::set_num_threads(1);
  const Tensors data = checkpoint::load_safetensors(archive("mlp.safetensors"));
  RunOptions options = sgd({}, 8);
  options.log_json = "/proc/no/such/log";
  EXPECT_ERROR(run_archive("mlp", data, options), StorageError, "'/proc/no/such/log'");
}

TEST(TrainNotFinite, ReportsDataMicrobatchStageAndFirstOperator) {
  at::set_num_threads(1);
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  const Tensors clean = checkpoint::load_safetensors(archive("mlp.safetensors"));
  Tensors data = clean;
  data["input"] = clean.at("input").clone();
  data["input"][5][2] = nan;
  // Rows 4 and 5 of 8 are the third of four microbatches.
  const RunOptions options = sgd({.pp = 2, .schedule = ScheduleKind::OneFOneB, .microbatches = 4}, 8);
  EXPECT_THAT(
      error_of("mlp", data, options),
      AllOf(HasSubstr("step 1"), HasSubstr("the data's 'input' contains nan in row 5 of the batch"),
            HasSubstr("stage 0, microbatch 2, tensor input, op aten::linear"), HasSubstr("of module 0")));
  // In the second accumulated backward of the second replica: rows 6 and 7.
  data["input"] = clean.at("input").clone();
  data["input"][7][0] = inf;
  EXPECT_THAT(
      error_of("mlp", data,
               sgd({.pp = 2, .dp = 2, .schedule = ScheduleKind::OneFOneB, .microbatches = 1}, 8, 2)),
      AllOf(HasSubstr(
                "every forward pass and its loss are finite, but the data's 'input' contains inf in row 7"),
            HasSubstr("part 1 of the batch, replica 1"), HasSubstr("stage 0, microbatch 0")));
  data = clean;
  data["target"] = clean.at("target").clone();
  data["target"][2][1] = nan;
  EXPECT_THAT(error_of("mlp", data, options),
              AllOf(HasSubstr("the data's 'target' contains nan in row 2 of the batch"),
                    HasSubstr("stage 1, microbatch 1, tensor target, op aten::mse_loss")));
}

TEST(TrainNotFinite, ReportsKeywordArgumentInItsStage) {
  at::set_num_threads(1);
  Tensors data = with_ignored(1, 0.1);  // rows 10 to 14 have no valid label, and a NaN loss
  data["weight"] = data.at("weight").clone();
  data["weight"][6] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THAT(
      error_of("language", data, sgd({.pp = 2, .schedule = ScheduleKind::OneFOneB, .microbatches = 10}, 20)),
      AllOf(HasSubstr("the data's 'weight' contains nan in row 6 of the batch"),
            HasSubstr("stage 0, microbatch 3, tensor weight, op aten::unsqueeze")));
  // Without the NaN, microbatches without valid labels are no reason to stop.
  data["weight"][6] = 1.0F;
  EXPECT_EQ(
      error_of("language", data, sgd({.pp = 2, .schedule = ScheduleKind::OneFOneB, .microbatches = 10}, 20)),
      "no error");
}

}  // namespace
}  // namespace penstock::train
