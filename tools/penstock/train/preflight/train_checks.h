// Checks that `penstock train` runs once, before it starts ranks, and the training data of command and ranks.
#pragma once

#include "config/train_settings.h"

#include <penstock/train/data.h>

#include <memory>
#include <string>
#include <vector>

namespace penstock::tool {

//! Throws UsageError for every error that files and options reveal. Sets `loss_output` from the model.
void check_training(TrainSettings& request);

//! Rows per microbatch of a pass, the largest first.
std::vector<std::int64_t> microbatch_rows(const train::RunOptions& run);

struct TrainingText {
  std::string content, origin;
};
//! Reads a text file, or generates sentences if the path is empty.
TrainingText training_text(const std::string& path);

//! Reads the examples for an exported model.
std::unique_ptr<train::DataSource> archive_data(const TrainSettings& request,
                                                const train::ArchiveModel& model);

}  // namespace penstock::tool
