// Grows and shrinks the loss scale.
#include "train/loop/loss_scale.h"

#include "base/number_text.h"
#include "base/text.h"

#include <penstock/base/error.h>

#include <algorithm>
#include <cmath>
#include <sstream>

namespace penstock::train {
namespace {

constexpr double kMax = 0x1p127;  // losses are float32

}  // namespace

LossScale::LossScale(const RunOptions& options, bool has_float16_parameters)
    : dynamic_(options.precision == Precision::Float16 || has_float16_parameters),
      interval_(options.loss_scale.growth_interval) {
  if (dynamic_) value_ = options.loss_scale.initial;
}

void LossScale::update(bool overflowed) {
  if (!dynamic_) return;
  if (overflowed) {
    value_ = std::max(value_ / 2, 1.0);
    updates_ = 0;
  } else if (++updates_ >= interval_) {
    value_ = std::min(value_ * 2, kMax);
    updates_ = 0;
  }
}

std::string LossScale::text() const {
  return str_cat(decimal_text(value_), " ", updates_);
}

void LossScale::restore(const std::string& text) {
  if (text.empty() || !dynamic_) return;
  std::istringstream stream(text);
  double value = 0;
  std::int64_t updates = 0;
  if (!(stream >> value >> updates) || !(value >= 1) || std::isinf(value) || updates < 0)
    throw ParseError(quote(text) + " is not the state of a loss scale");
  value_ = value;
  updates_ = updates;
}

}  // namespace penstock::train
