// The options of `penstock train` that define the recipe: optimizer, learning rate and loss.
#pragma once

#include "config/settings.h"

#include <penstock/train/model.h>
#include <penstock/train/options.h>

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace penstock::tool {

//! The choices of an option, from the names of its values.
template <class E>
std::vector<std::pair<std::string, E>> named(std::initializer_list<E> values) {
  std::vector<std::pair<std::string, E>> choices;
  for (const E value : values) choices.emplace_back(to_string(value), value);
  return choices;
}

struct RecipeSettings {
  std::optional<double> rate;
  std::optional<std::int64_t> warmup;
  // Hyperparameters that only some optimizers have.
  std::optional<double> momentum, dampening, beta1, beta2, epsilon, rate_decay, initial_accumulator, alpha;
  std::vector<std::string> rate_scales;  //!< `PATTERN=FACTOR`
  train::LossKind loss = train::LossKind::CrossEntropy;
  std::optional<double> loss_scale;
  double label_smoothing = 0;
  std::optional<std::int64_t> class_dim;
  std::vector<std::string> class_weights;  //!< numbers, or one file

  void declare(Settings& settings, train::RunOptions& run);
  //! Resolves all defaults except those of the learning rate. Throws UsageError for values that are invalid
  //! or that do not apply to the model, or to the chosen optimizer or loss.
  void resolve(train::RunOptions& run, bool built_in);
  //! Throws UsageError if `--loss-scale` is given, but neither the precision nor the model is float16.
  void check_loss_scale(train::Precision precision, bool has_float16) const;
  //! Resolves the learning rate of a run of `run.steps` steps. Throws UsageError for values that are invalid
  //! or that do not apply to the chosen schedule.
  void resolve_learning_rate(train::RunOptions& run, bool built_in);
  train::LossOptions loss_options() const;

 private:
  void resolve_optimizer(train::OptimizerOptions& options);
  void resolve_loss_scale(train::RunOptions& run);
  void check_loss(bool built_in) const;
};

//! Parses numbers, or reads the only tensor of a .safetensors file.
std::vector<double> read_class_weights(const std::vector<std::string>& entries);

//! Parses `head=10,blocks.*.norm=0.1`.
std::vector<train::RateScale> read_rate_scales(const std::vector<std::string>& entries);

}  // namespace penstock::tool
