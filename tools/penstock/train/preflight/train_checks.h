// Checks that `penstock train` runs once, before it starts ranks, and the training data of command and ranks.
#pragma once

#include "config/train_settings.h"

#include <penstock/train/options.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace penstock::tool {

//! Throws UsageError for every error that files and options reveal. Sets `loss_output` from the model, and
//! the options that depend on the data (`resolve_training`). `config` returns the resolved configuration: if
//! a run cannot resume, the error names the settings that differ from those of the checkpoint.
void check_training(TrainSettings& request, const std::function<std::string()>& config);

//! Sets the options that depend on the data: `--epochs` becomes `--steps`, the vocabulary is that of the
//! token files, and a resumed run reads its examples in the order of its checkpoint. Part of
//! `check_training`.
void resolve_training(TrainSettings& request);

//! Rows per microbatch of a pass, the largest first.
std::vector<std::int64_t> microbatch_rows(const train::RunOptions& run);

}  // namespace penstock::tool
