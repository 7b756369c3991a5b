// Which parameters are trained, and with which learning rate and weight decay, by name.
//
// A pattern is a dotted path in which `*` and `?` match within a component, as in tensor-parallel plans. It
// selects the parameter of that name, or all parameters of the module of that path: `blocks.*.norm`,
// `head.weight`. Names are those of the whole model, for any number of stages.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::train {

//! The learning rate of the selected parameters, as a factor of that of the run.
struct RateScale {
  std::string pattern{};
  double factor = 1;
};

//! Exceptions for parameters, by pattern. By default, all parameters are treated alike.
struct ParameterGroupOptions {
  //! Parameters without weight decay: patterns, or `biases` (parameters named `bias` or like it) and `norms`
  //! (other parameters with fewer than two dims, such as the weights of norms).
  std::vector<std::string> no_decay{};
  std::vector<RateScale> rate_scales{};  //!< if several select a parameter, the last one applies
  //! Parameters that are not trained: they have no gradient and no optimizer state.
  std::vector<std::string> freeze{};

  bool empty() const { return no_decay.empty() && rate_scales.empty() && freeze.empty(); }
};

//! How the optimizer treats a parameter.
struct ParameterGroup {
  double rate_scale = 1;
  bool decays = true;
  bool frozen = false;

  friend bool operator==(const ParameterGroup&, const ParameterGroup&) = default;
};

//! A parameter of the model, to resolve patterns.
struct ParameterInfo {
  std::vector<std::string>
      names{};  //!< the first one is that of the stages; the others are of tied parameters
  std::int64_t dims = 0;
  bool trained = true;  //!< false if the model itself excludes it from training
};

//! The groups of all parameters of a model.
class ParameterGroups {
 public:
  //! Every parameter has the default group.
  ParameterGroups() = default;
  //! Throws UsageError if a pattern selects nothing, a factor is negative or not finite, or no parameter is
  //! left to train.
  ParameterGroups(const ParameterGroupOptions& options, const std::vector<ParameterInfo>& parameters);

  const ParameterGroup& of(const std::string& name) const;

 private:
  std::map<std::string, ParameterGroup> exceptions_;  // by the name in the stages
};

//! Whether a pattern selects the parameter with this name.
bool selects(std::string_view pattern, std::string_view name);

}  // namespace penstock::train
