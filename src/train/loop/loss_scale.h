// The dynamic loss scale of training in float16. All ranks have the same scale, because they see the same
// norm.
#pragma once

#include <penstock/train/options.h>

#include <cstdint>
#include <string>

namespace penstock::train {

class LossScale {
 public:
  //! The scale is always 1 if neither the precision nor the parameters of the model are float16.
  explicit LossScale(const RunOptions& options, bool has_float16_parameters = false);

  double value() const { return value_; }
  //! Whether the scale changes.
  bool is_dynamic() const { return dynamic_; }
  //! Whether an overflow may be the fault of the scale.
  bool can_shrink() const { return dynamic_ && value_ > 1; }
  //! Call after each step.
  void update(bool overflowed);

  //! The state, for checkpoints.
  std::string text() const;
  //! Restores the state; ignores the empty text. Throws ParseError if the text is not a state.
  void restore(const std::string& text);

 private:
  bool dynamic_;
  std::int64_t interval_;
  double value_ = 1;
  std::int64_t updates_ = 0;  // since the last change of the scale
};

}  // namespace penstock::train
