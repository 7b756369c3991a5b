// Warns of a default split whose stages are very uneven.
#pragma once

#include "config/train_settings.h"

#include <optional>
#include <string>

namespace penstock::tool {

//! A line that names the largest stage and the option that helps, if an exported model is split by parameters
//! and one stage has more than twice the mean operations or parameters (of two stages: more than 75%).
//! Requires a request that `check_training` has accepted. Loads no weights.
std::optional<std::string> balance_warning(const TrainSettings& request);

}  // namespace penstock::tool
