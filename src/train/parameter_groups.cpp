// Resolves patterns of parameter names.
#include "base/option_ranges.h"
#include "base/text.h"
#include "parallel/tensor/module_paths.h"

#include <penstock/base/error.h>
#include <penstock/train/parameter_groups.h>

#include <algorithm>
#include <functional>
#include <set>

namespace penstock::train {
namespace {

bool is_bias(const ParameterInfo& parameter) {
  return std::any_of(parameter.names.begin(), parameter.names.end(), [](const std::string& name) {
    return name.find("bias", name.rfind('.') + 1) != std::string::npos;
  });
}

// Parameters and modules, for hints.
std::vector<std::string> selectable_paths(const std::vector<ParameterInfo>& parameters) {
  std::set<std::string> paths;
  for (const ParameterInfo& parameter : parameters)
    for (const std::string& name : parameter.names)
      for (std::size_t end = 0; end != std::string::npos;) {
        end = name.find('.', end + 1);
        paths.insert(name.substr(0, end));
      }
  return {paths.begin(), paths.end()};
}

using Predicate = std::function<bool(const ParameterInfo&)>;

Predicate predicate_of(const std::string& pattern, bool has_presets) {
  if (has_presets && pattern == "biases") return is_bias;
  if (has_presets && pattern == "norms")
    return [](const ParameterInfo& parameter) { return parameter.dims < 2 && !is_bias(parameter); };
  return [pattern](const ParameterInfo& parameter) {
    return std::any_of(parameter.names.begin(), parameter.names.end(),
                       [&](const std::string& name) { return selects(pattern, name); });
  };
}

}  // namespace

bool selects(std::string_view pattern, std::string_view name) {
  for (std::size_t end = 0; end != std::string_view::npos;) {
    end = name.find('.', end + 1);
    if (parallel::path_fits(pattern, name.substr(0, end))) return true;
  }
  return false;
}

ParameterGroups::ParameterGroups(const ParameterGroupOptions& options,
                                 const std::vector<ParameterInfo>& parameters) {
  const auto apply = [&](const std::string& pattern, std::string_view option, bool has_presets,
                         const std::function<void(ParameterGroup&)>& change) {
    const Predicate selected = predicate_of(pattern, has_presets);
    bool any = has_presets && (pattern == "biases" || pattern == "norms");  // a model may have none of them
    for (const ParameterInfo& parameter : parameters) {
      if (!selected(parameter)) continue;
      any = true;
      change(exceptions_[parameter.names.at(0)]);
    }
    if (!any)
      throw UsageError(str_cat(option, ": no parameter or module of the model matches ", quote(pattern)), {},
                       did_you_mean(pattern, selectable_paths(parameters),
                                    "`*` matches within one component of a path: blocks.*.norm"));
  };
  for (const std::string& pattern : options.no_decay)
    apply(pattern, "no_decay", true, [](ParameterGroup& group) { group.decays = false; });
  for (const RateScale& scale : options.rate_scales) {
    check_not_negative(scale.factor, "rate_scales of " + quote(scale.pattern));
    apply(scale.pattern, "rate_scales", false,
          [&](ParameterGroup& group) { group.rate_scale = scale.factor; });
  }
  for (const std::string& pattern : options.freeze)
    apply(pattern, "freeze", false, [](ParameterGroup& group) { group.frozen = true; });
  const auto is_trained = [&](const ParameterInfo& parameter) {
    return parameter.trained && !of(parameter.names.at(0)).frozen;
  };
  if (!options.freeze.empty() && std::none_of(parameters.begin(), parameters.end(), is_trained))
    throw UsageError("freeze: every parameter of the model is frozen", {}, "leave some parameters to train");
}

const ParameterGroup& ParameterGroups::of(const std::string& name) const {
  static const ParameterGroup standard;
  const auto it = exceptions_.find(name);
  return it == exceptions_.end() ? standard : it->second;
}

}  // namespace penstock::train
