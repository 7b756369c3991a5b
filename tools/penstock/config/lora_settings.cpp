// Checks the options for low-rank adapters.
#include "config/lora_settings.h"

#include "base/option_ranges.h"

#include <penstock/base/error.h>

#include <cmath>

namespace penstock::tool {

void LoraSettings::declare(Settings& s) {
  s.add("--lora", patterns,
        "train low-rank adapters of linear layers and embeddings, by pattern, and freeze all other "
        "parameters: layers.*.attention,layers.*.mlp.up");
  s.add("--lora-rank", rank, "rank of the adapters [8]");
  s.add("--lora-alpha", alpha, "adapters are scaled by this number divided by their rank [8]");
  s.add("--lora-dropout", dropout, "dropout of the inputs of adapters of linear layers [0]");
}

void LoraSettings::resolve() {
  if (patterns.empty()) {
    const char* const option = rank ? "--lora-rank" : alpha ? "--lora-alpha" : "--lora-dropout";
    if (rank || alpha || dropout)
      throw UsageError(std::string(option) + " needs --lora", {},
                       "name the layers: --lora 'layers.*.attention'");
    return;
  }
  const train::LoraOptions defaults;
  rank = count_option(rank.value_or(defaults.rank), "--lora-rank");
  alpha = alpha.value_or(defaults.alpha);
  dropout = dropout.value_or(defaults.dropout);
  if (!(*alpha > 0) || std::isinf(*alpha))
    throw UsageError("--lora-alpha must be greater than 0", {}, "for example 8");
  if (!(*dropout >= 0 && *dropout < 1))
    throw UsageError("--lora-dropout must be at least 0 and less than 1", {}, "for example 0.05");
}

std::optional<train::LoraOptions> LoraSettings::options(std::uint64_t seed) const {
  if (patterns.empty()) return std::nullopt;
  return train::LoraOptions{
      .patterns = patterns, .rank = *rank, .alpha = *alpha, .dropout = *dropout, .seed = seed};
}

}  // namespace penstock::tool
