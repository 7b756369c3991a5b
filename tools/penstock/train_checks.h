// What `penstock train` checks in the command, once, before it starts ranks; and how both get at the data.
#pragma once

#include "train_settings.h"

#include <penstock/train/data.h>

#include <memory>
#include <string>

namespace penstock::tool {

//! UsageError for everything that can be known from files and options. Fills in what follows from the model.
void check_training(TrainSettings& asked);

struct TrainingText {
  std::string content, origin;
};
//! The text of a file; without one, sentences of a made-up grammar.
TrainingText training_text(const std::string& path);

//! The examples of a run with an exported model.
std::unique_ptr<train::DataSource> archive_data(const TrainSettings& asked, const train::ArchiveModel& model);

}  // namespace penstock::tool
