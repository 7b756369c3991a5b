// Formulas of the learning-rate schedules.
#include "base/option_ranges.h"
#include "base/text.h"

#include <penstock/base/error.h>
#include <penstock/train/learning_rate.h>

#include <algorithm>
#include <cmath>
#include <numbers>

namespace penstock::train {
namespace {

using RateKind = LearningRateKind;

void check_fraction(double value, std::string_view option) {
  if (!(value >= 0 && value <= 1))
    throw UsageError(str_cat(option, " must be at least 0 and at most 1"), {}, "for example 0.1");
}

void check_kind(bool given, bool applies, std::string_view option, RateKind kind) {
  if (given && !applies)
    throw UsageError(str_cat("learning_rate.", option, " does not apply to the schedule ", to_string(kind)),
                     {}, "leave it unset, or use another schedule");
}

void check_applicable(const LearningRateOptions& options) {
  const RateKind kind = options.kind;
  check_kind(options.final_fraction.has_value(), kind != RateKind::Constant && kind != RateKind::Step,
             "final_fraction", kind);
  check_kind(options.decay.has_value(), kind == RateKind::WarmupStableDecay, "decay", kind);
  check_kind(options.power.has_value(), kind == RateKind::Polynomial, "power", kind);
  check_kind(options.period.has_value(), kind == RateKind::Step, "period", kind);
  check_kind(options.gamma.has_value(), kind == RateKind::Step, "gamma", kind);
  check_kind(options.start_fraction.has_value(), kind == RateKind::OneCycle, "start_fraction", kind);
}

void check_options(const LearningRateOptions& options, std::int64_t steps) {
  check_at_least(steps, 1, "steps");
  check_at_least(options.warmup, 0, "learning_rate.warmup");
  check_not_negative(options.peak, "learning_rate.peak");
  if (options.final_fraction) check_fraction(*options.final_fraction, "learning_rate.final_fraction");
  if (options.start_fraction) check_fraction(*options.start_fraction, "learning_rate.start_fraction");
  if (options.gamma) check_not_negative(*options.gamma, "learning_rate.gamma");
  if (options.power) check_not_negative(*options.power, "learning_rate.power");
  if (options.decay) check_at_least(*options.decay, 0, "learning_rate.decay");
  if (options.period) check_at_least(*options.period, 1, "learning_rate.period");
  check_applicable(options);
  if (options.kind == RateKind::Step && !options.period)
    throw UsageError("the learning-rate schedule step needs a period", {},
                     "set learning_rate.period to the number of steps between two decays");
  if (options.kind == RateKind::OneCycle && options.warmup == 0)
    throw UsageError("the learning-rate schedule one_cycle needs a warmup, in which the rate rises", {},
                     "set learning_rate.warmup, for example to 30% of the steps");
}

// The cosine from 1 to 0.
double half_cosine(double done) {
  return 0.5 * (1 + std::cos(std::numbers::pi * done));
}

double final_fraction(const LearningRateOptions& options) {
  return options.final_fraction.value_or(options.kind == RateKind::OneCycle ? 4e-6 : 0.1);
}

// The rate of a step after the warmup. `done` is the fraction of these steps that are complete.
double decayed(const LearningRateOptions& options, double peak, double done) {
  const double last = final_fraction(options);
  switch (options.kind) {
    case RateKind::Linear:
      return peak * (last + (1 - last) * (1 - done));
    case RateKind::Cosine:
    case RateKind::OneCycle:
      return peak * (last + (1 - last) * half_cosine(done));
    case RateKind::Polynomial:
      return peak * (last + (1 - last) * std::pow(1 - done, options.power.value_or(1)));
    case RateKind::Constant:
    case RateKind::WarmupStableDecay:
    case RateKind::Step:
      break;
  }
  return peak;
}

}  // namespace

std::string_view to_string(LearningRateKind kind) {
  switch (kind) {
    case RateKind::Constant:
      return "constant";
    case RateKind::Linear:
      return "linear";
    case RateKind::Cosine:
      return "cosine";
    case RateKind::WarmupStableDecay:
      return "wsd";
    case RateKind::Polynomial:
      return "polynomial";
    case RateKind::Step:
      return "step";
    case RateKind::OneCycle:
      return "one_cycle";
  }
  return "";
}

LearningRate::LearningRate(const LearningRateOptions& options, std::int64_t steps)
    : options_(options), steps_(steps) {
  check_options(options_, steps_);
}

double LearningRate::at(std::int64_t step) const {
  return at(step, options_.peak);
}

double LearningRate::at(std::int64_t step, double peak) const {
  if (step <= options_.warmup) {
    if (options_.kind != RateKind::OneCycle)
      return peak * static_cast<double>(step) / static_cast<double>(options_.warmup);
    // Step 1 has the start fraction, the last step of the warmup has the peak.
    const double start = options_.start_fraction.value_or(0.04);
    const double rising = static_cast<double>(std::max<std::int64_t>(options_.warmup - 1, 1));
    return peak * (1 + (start - 1) * half_cosine(static_cast<double>(step - 1) / rising));
  }
  const std::int64_t since = step - options_.warmup;
  if (options_.kind == RateKind::Step)
    return peak * std::pow(options_.gamma.value_or(0.1), static_cast<double>((since - 1) / *options_.period));
  if (options_.kind == RateKind::WarmupStableDecay) {
    const std::int64_t decay = std::min(options_.decay.value_or(std::max<std::int64_t>(steps_ / 10, 1)),
                                        std::max<std::int64_t>(steps_ - options_.warmup, 0));
    const std::int64_t left = std::max<std::int64_t>(steps_ - step, 0);
    if (left >= decay) return peak;
    const double last = final_fraction(options_);
    return peak * (last + (1 - last) * static_cast<double>(left) / static_cast<double>(decay));
  }
  const double total = static_cast<double>(std::max<std::int64_t>(steps_ - options_.warmup, 1));
  return decayed(options_, peak, std::min(1.0, static_cast<double>(since) / total));
}

}  // namespace penstock::train
