// The options for initial weights, with errors that name flags.
#include "config/weight_settings.h"

#include <penstock/base/error.h>

namespace penstock::tool {

void WeightSettings::declare(Settings& s) {
  s.add("--init", init,
        "start from these weights: a .safetensors file, a Hugging Face directory or index, or a checkpoint "
        "(adapters of a LoRA run are merged into their base)");
  s.add("--init-rename", rename,
        "with --init: map names of its tensors and modules, in order: model=,layers.*=blocks.*");
  s.add("--init-partly", partly, "with --init: load the matching tensors and report the others");
}

void WeightSettings::resolve(train::RunOptions& run) const {
  if (init.empty()) {
    const char* const option = !rename.empty() ? "--init-rename" : "--init-partly";
    if (!rename.empty() || partly)
      throw UsageError(std::string(option) + " needs --init", {}, "give the weights with --init PATH");
    return;
  }
  train::InitialWeights weights{.path = init, .renames = {}, .allow_partial = partly};
  for (const std::string& rule : rename) {
    try {
      weights.renames.push_back(checkpoint::parse_rename_rule(rule));
    } catch (const UsageError& error) {
      throw UsageError("--init-rename: " + error.message(), error.context(), error.hint());
    }
  }
  run.init = std::move(weights);
}

}  // namespace penstock::tool
