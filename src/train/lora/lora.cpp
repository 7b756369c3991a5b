// Checks the options of LoRA and resolves its patterns.
#include "base/option_ranges.h"
#include "base/text.h"
#include "parallel/tensor/module_paths.h"
#include "train/lora/layer_patterns.h"

#include <penstock/base/error.h>
#include <penstock/train/lora.h>
#include <penstock/train/parameter_groups.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>

namespace penstock::train {
namespace {

bool any_of(const std::vector<std::string>& patterns, const std::function<bool(const std::string&)>& fits) {
  return std::any_of(patterns.begin(), patterns.end(), fits);
}

// Layers and the modules that contain them, for hints.
std::vector<std::string> selectable(const std::vector<std::string>& linear,
                                    const std::vector<std::string>& embeddings) {
  std::set<std::string> paths(embeddings.begin(), embeddings.end());
  for (const std::string& module : linear)
    for (std::size_t end = 0; end != std::string::npos;) {
      end = module.find('.', end + 1);
      paths.insert(module.substr(0, end));
    }
  return {paths.begin(), paths.end()};
}

}  // namespace

void check(const LoraOptions& options) {
  if (options.patterns.empty())
    throw UsageError("LoRA needs patterns of modules", {}, "for example layers.*.attention");
  check_between(options.rank, 1, kMaxCount, "the rank of LoRA");
  if (!(options.alpha > 0) || std::isinf(options.alpha))
    throw UsageError("the alpha of LoRA must be greater than 0", {},
                     "for example the rank, or twice as much");
  if (!(options.dropout >= 0 && options.dropout < 1))
    throw UsageError("the dropout of LoRA must be at least 0 and less than 1", {}, "for example 0.05");
}

std::string to_string(const Lora& lora) {
  return str_cat("LoRA of rank ", lora.options.rank, " for ",
                 counted(static_cast<std::int64_t>(lora.layers.size()), "layer"));
}

bool selects_layer(const LoraOptions& options, const std::string& module) {
  return any_of(options.patterns, [&](const std::string& pattern) { return selects(pattern, module); });
}

bool selects_embedding(const LoraOptions& options, const std::string& module) {
  return any_of(options.patterns,
                [&](const std::string& pattern) { return parallel::path_fits(pattern, module); });
}

void check_patterns(const LoraOptions& options, const std::vector<std::string>& linear,
                    const std::vector<std::string>& embeddings) {
  for (const std::string& pattern : options.patterns) {
    const auto selected = [&](const std::string& module) { return selects(pattern, module); };
    const auto fits = [&](const std::string& module) { return parallel::path_fits(pattern, module); };
    if (any_of(linear, selected) || any_of(embeddings, fits)) continue;
    throw UsageError("LoRA: no linear layer or embedding of the model matches " + quote(pattern), {},
                     did_you_mean(pattern, selectable(linear, embeddings),
                                  "`*` matches within one component of a path: layers.*.attention"));
  }
}

}  // namespace penstock::train
