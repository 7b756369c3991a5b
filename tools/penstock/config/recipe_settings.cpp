// The options of the recipe, with errors that name flags.
#include "config/recipe_settings.h"

#include "base/option_ranges.h"
#include "base/text.h"
#include "cli/paths.h"

#include <penstock/base/error.h>
#include <penstock/checkpoint/safetensors.h>

#include <ATen/Tensor.h>

#include <algorithm>
#include <charconv>
#include <cmath>

namespace penstock::tool {
namespace {

using train::LearningRateKind;

constexpr std::initializer_list<LearningRateKind> kRateKinds = {
    LearningRateKind::Constant,          LearningRateKind::Linear,     LearningRateKind::Cosine,
    LearningRateKind::WarmupStableDecay, LearningRateKind::Polynomial, LearningRateKind::Step,
    LearningRateKind::OneCycle};

// `a, b or c`.
std::string either(std::vector<std::string> names) {
  const std::string last = names.back();
  names.pop_back();
  return names.empty() ? last : join(names, ", ") + " or " + last;
}

// Throws if an option is given for a schedule that does not have it.
void check_schedule(bool given, const char* option, LearningRateKind chosen,
                    std::initializer_list<LearningRateKind> kinds) {
  if (!given || std::find(kinds.begin(), kinds.end(), chosen) != kinds.end()) return;
  std::vector<std::string> names;
  for (const LearningRateKind kind : kinds) names.emplace_back(to_string(kind));
  throw UsageError(str_cat(option, " does not apply to --lr-schedule ", to_string(chosen)), {},
                   "leave it out, or choose --lr-schedule " + either(names));
}

// The same for optimizers.
void check_optimizer(bool given, const char* option, train::OptimizerKind chosen,
                     std::initializer_list<train::OptimizerKind> kinds) {
  if (!given || std::find(kinds.begin(), kinds.end(), chosen) != kinds.end()) return;
  std::vector<std::string> names;
  for (const train::OptimizerKind kind : kinds) names.emplace_back(to_string(kind));
  throw UsageError(str_cat(option, " does not apply to --optimizer ", to_string(chosen)), {},
                   "leave it out, or choose --optimizer " + either(names));
}

void check_below_one(double value, const char* option) {
  if (value >= 1) throw UsageError(str_cat(option, " must be less than 1"), {}, "for example 0.9");
}

void check_fraction(const std::optional<double>& value, const char* option) {
  if (value && !(*value >= 0 && *value <= 1))
    throw UsageError(str_cat(option, " must be at least 0 and at most 1"), {},
                     "give a fraction of --lr, such as 0.1");
}

// Sets the options of the chosen schedule that were not given.
void set_defaults(train::LearningRateOptions& rate, std::int64_t steps) {
  using enum LearningRateKind;
  if (rate.kind != Constant && rate.kind != Step && !rate.final_fraction)
    rate.final_fraction = rate.kind == OneCycle ? 4e-6 : 0.1;
  const std::int64_t after_warmup = std::max<std::int64_t>(steps - rate.warmup, 0);
  if (rate.kind == WarmupStableDecay && !rate.decay)
    rate.decay = std::min(std::max<std::int64_t>(steps / 10, 1), after_warmup);
  if (rate.decay && *rate.decay > after_warmup)
    throw UsageError(str_cat("--lr-decay-steps ", *rate.decay, " is more than the ", after_warmup,
                             " steps after the warmup"),
                     {}, "use fewer, or more --steps");
  if (rate.kind == Polynomial && !rate.power) rate.power = 1;
  if (rate.kind == Step && !rate.gamma) rate.gamma = 0.1;
  if (rate.kind == OneCycle && !rate.start_fraction) rate.start_fraction = 0.04;
}

// A number that is finite and not negative.
std::optional<double> number_of(const std::string& text) {
  double number = 0;
  const char* const end = text.data() + text.size();
  const auto [after, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || after != end || !(number >= 0) || std::isinf(number)) return std::nullopt;
  return number;
}

void check_learning_rate(const train::LearningRateOptions& rate) {
  using enum LearningRateKind;
  check_schedule(rate.final_fraction.has_value(), "--lr-final", rate.kind,
                 {Linear, Cosine, WarmupStableDecay, Polynomial, OneCycle});
  check_schedule(rate.decay.has_value(), "--lr-decay-steps", rate.kind, {WarmupStableDecay});
  check_schedule(rate.power.has_value(), "--lr-power", rate.kind, {Polynomial});
  check_schedule(rate.period.has_value(), "--lr-period", rate.kind, {Step});
  check_schedule(rate.gamma.has_value(), "--lr-gamma", rate.kind, {Step});
  check_schedule(rate.start_fraction.has_value(), "--lr-start", rate.kind, {OneCycle});
  check_at_least(rate.warmup, 0, "--warmup");
  check_not_negative(rate.peak, "--lr");
  check_fraction(rate.final_fraction, "--lr-final");
  check_fraction(rate.start_fraction, "--lr-start");
  if (rate.decay) check_at_least(*rate.decay, 0, "--lr-decay-steps");
  if (rate.power) check_not_negative(*rate.power, "--lr-power");
  if (rate.gamma) check_not_negative(*rate.gamma, "--lr-gamma");
  if (rate.period) check_at_least(*rate.period, 1, "--lr-period");
  if (rate.kind == Step && !rate.period)
    throw UsageError("--lr-schedule step needs --lr-period", {},
                     "give the number of steps between two decays, such as --lr-period 1000");
  if (rate.kind == OneCycle && rate.warmup == 0)
    throw UsageError("--lr-schedule one_cycle needs a --warmup of at least 1, in which the rate rises", {},
                     "leave out --warmup for 30% of the steps");
}

}  // namespace

void RecipeSettings::declare(Settings& s, train::RunOptions& run) {
  using namespace train;
  s.choice<OptimizerKind>("--optimizer", run.optimizer.kind,
                          named({OptimizerKind::AdamW, OptimizerKind::Adam, OptimizerKind::Sgd,
                                 OptimizerKind::Adagrad, OptimizerKind::RmsProp}),
                          "the optimizer");
  s.add("--lr", rate, "learning rate [0.003; exported model: 0.001]");
  s.choice<LearningRateKind>("--lr-schedule", run.learning_rate.kind, named(kRateKinds),
                             "learning rate after the warmup");
  s.add("--warmup", warmup,
        "steps over which the learning rate rises from 0 [20; exported model: 0; one_cycle: 30% of --steps]");
  s.add("--lr-final", run.learning_rate.final_fraction,
        "learning rate of the last step, as a fraction of --lr [0.1; one_cycle: 0.000004]");
  s.add("--lr-decay-steps", run.learning_rate.decay, "steps of the decay of wsd [10% of --steps]");
  s.add("--lr-power", run.learning_rate.power, "exponent of polynomial [1]");
  s.add("--lr-period", run.learning_rate.period, "step: steps after which the learning rate decays");
  s.add("--lr-gamma", run.learning_rate.gamma, "step: factor of each decay [0.1]");
  s.add("--lr-start", run.learning_rate.start_fraction,
        "learning rate of the first step of one_cycle, as a fraction of --lr [0.04]");
  s.add("--weight-decay", run.optimizer.weight_decay, "weight decay of all parameters except --no-decay");
  s.add("--no-decay", run.parameters.no_decay,
        "parameters without weight decay: norms, biases, and patterns: norms,biases,blocks.*.scale");
  s.add("--lr-scale", rate_scales, "factors of the learning rate by pattern: head=10,blocks.0=0.1");
  s.add("--freeze", run.parameters.freeze,
        "parameters and modules that are not trained, by pattern: token,blocks.*.norm");
  s.add("--momentum", momentum, "momentum of sgd and rmsprop [0]");
  s.add("--dampening", dampening, "dampening of the momentum of sgd [0]");
  s.add("--nesterov", run.optimizer.nesterov, "Nesterov momentum of sgd");
  s.add("--beta1", beta1, "decay of the mean gradients of adamw and adam [0.9]");
  s.add("--beta2", beta2, "decay of the mean squares of adamw and adam [0.999]");
  s.add("--epsilon", epsilon, "added to divisors; not for sgd [1e-8; adagrad: 1e-10]");
  s.add("--amsgrad", run.optimizer.amsgrad, "AMSGrad variant of adamw and adam");
  s.add("--adagrad-decay", rate_decay, "decay of the learning rate of adagrad [0]");
  s.add("--initial-accumulator", initial_accumulator, "initial sums of squares of adagrad [0]");
  s.add("--rmsprop-alpha", alpha, "decay of the mean squares of rmsprop [0.99]");
  s.add("--centered", run.optimizer.centered, "rmsprop: subtract the squared mean gradient");
  s.choice<LossKind>("--loss", loss,
                     named({LossKind::CrossEntropy, LossKind::Mse, LossKind::Bce, LossKind::L1}),
                     "loss; the built-in GPT has only cross_entropy");
  s.add("--loss-scale", loss_scale,
        "initial loss scale of --precision fp16 and of models in float16, a power of two [65536]");
  s.add("--label-smoothing", label_smoothing, "label smoothing of cross_entropy");
  s.add("--class-dim", class_dim,
        "dim of the output with the classes of cross_entropy and bce, from 1: 1 for [N, C, H, W] [the last]");
  s.add("--class-weights", class_weights,
        "weights of the classes of cross_entropy and bce: numbers, or a .safetensors file with one tensor; "
        "for the GPT, one per token of the vocabulary");
}

void RecipeSettings::resolve_optimizer(train::OptimizerOptions& options) {
  using enum train::OptimizerKind;
  const train::OptimizerKind kind = options.kind;
  check_not_negative(options.weight_decay, "--weight-decay");
  const auto take = [&](std::optional<double>& value, double& target, const char* option,
                        std::initializer_list<train::OptimizerKind> kinds) {
    if (value) check_not_negative(*value, option);
    check_optimizer(value.has_value(), option, kind, kinds);
    if (std::find(kinds.begin(), kinds.end(), kind) != kinds.end()) value = target = value.value_or(target);
  };
  take(momentum, options.momentum, "--momentum", {Sgd, RmsProp});
  take(dampening, options.dampening, "--dampening", {Sgd});
  take(beta1, options.beta1, "--beta1", {AdamW, Adam});
  take(beta2, options.beta2, "--beta2", {AdamW, Adam});
  take(rate_decay, options.rate_decay, "--adagrad-decay", {Adagrad});
  take(initial_accumulator, options.initial_accumulator, "--initial-accumulator", {Adagrad});
  take(alpha, options.alpha, "--rmsprop-alpha", {RmsProp});
  double divisor = kind == Adagrad ? 1e-10 : 1e-8;
  take(epsilon, divisor, "--epsilon", {AdamW, Adam, Adagrad, RmsProp});
  options.epsilon = epsilon;
  check_optimizer(options.nesterov, "--nesterov", kind, {Sgd});
  check_optimizer(options.amsgrad, "--amsgrad", kind, {AdamW, Adam});
  check_optimizer(options.centered, "--centered", kind, {RmsProp});
  check_below_one(options.beta1, "--beta1");
  check_below_one(options.beta2, "--beta2");
  if (options.nesterov && (options.momentum == 0 || options.dampening != 0))
    throw UsageError("--nesterov needs --momentum, and no --dampening", {}, "for example --momentum 0.9");
}

void RecipeSettings::resolve_learning_rate(train::RunOptions& run, bool built_in) {
  train::LearningRateOptions& options = run.learning_rate;
  rate = options.peak = rate.value_or(built_in ? 3e-3 : 1e-3);
  if (!warmup && options.kind == LearningRateKind::OneCycle)
    warmup = std::max<std::int64_t>(run.steps * 3 / 10, 1);
  warmup = options.warmup = warmup.value_or(built_in ? 20 : 0);
  check_learning_rate(options);
  set_defaults(options, run.steps);
}

void RecipeSettings::resolve(train::RunOptions& run, bool built_in) {
  resolve_optimizer(run.optimizer);
  check_loss(built_in);
  if (built_in) check_loss_scale(run.precision, /*has_float16=*/false);
  resolve_loss_scale(run);
  if (run.parameter_dtype == train::ParameterDtype::Bfloat16 && run.precision == train::Precision::Float16)
    throw UsageError("--param-dtype bf16 does not apply to --precision fp16", {},
                     "choose --precision bf16 or float32, or leave --param-dtype out");
  run.parameters.rate_scales = read_rate_scales(rate_scales);
}

void RecipeSettings::check_loss_scale(train::Precision precision, bool has_float16) const {
  if (loss_scale && precision != train::Precision::Float16 && !has_float16)
    throw UsageError(str_cat("--loss-scale does not apply to --precision ", to_string(precision)), {},
                     "leave it out, or choose --precision fp16");
}

void RecipeSettings::resolve_loss_scale(train::RunOptions& run) {
  if (!loss_scale && run.precision != train::Precision::Float16) return;
  loss_scale = run.loss_scale.initial = loss_scale.value_or(run.loss_scale.initial);
  if (!train::is_loss_scale(*loss_scale))
    throw UsageError("--loss-scale must be a power of two of at least 1", {}, "for example 65536");
}

void RecipeSettings::check_loss(bool built_in) const {
  using enum train::LossKind;
  if (built_in && loss != CrossEntropy)
    throw UsageError(str_cat("--loss ", to_string(loss),
                             " does not apply to the built-in GPT: its target is the next token, which is a "
                             "class of the vocabulary and not a number in the shape of its output"),
                     {}, "leave it out, or give an exported model first: penstock train MODEL.pt2 --data …");
  if (!(label_smoothing >= 0 && label_smoothing <= 1))
    throw UsageError("--label-smoothing must be at least 0 and at most 1", {}, "for example 0.1");
  if (label_smoothing > 0 && loss != CrossEntropy)
    throw UsageError(str_cat("--label-smoothing does not apply to --loss ", to_string(loss)), {},
                     "leave it out, or choose --loss cross_entropy");
  if (class_dim && loss != CrossEntropy && loss != Bce)
    throw UsageError(str_cat("--class-dim does not apply to --loss ", to_string(loss)), {},
                     "leave it out, or choose --loss cross_entropy or bce");
  if (class_dim) check_at_least(*class_dim, 1, "--class-dim");
  if (!class_weights.empty() && loss != CrossEntropy && loss != Bce)
    throw UsageError(str_cat("--class-weights does not apply to --loss ", to_string(loss)), {},
                     "leave it out, or choose --loss cross_entropy or bce");
}

train::LossOptions RecipeSettings::loss_options() const {
  return {.label_smoothing = label_smoothing,
          .class_weights = read_class_weights(class_weights),
          .class_dim = class_dim};
}

std::vector<double> read_class_weights(const std::vector<std::string>& entries) {
  const std::string hint = "give a number per class, such as 1,2.5,1, or FILE.safetensors with one tensor";
  std::vector<double> weights;
  if (entries.size() == 1 && entries[0].ends_with(".safetensors")) {
    check_input_file(entries[0], ".safetensors");
    const auto tensors = checkpoint::load_safetensors(entries[0]);
    if (tensors.size() != 1 || tensors.begin()->second.dim() != 1)
      throw UsageError("--class-weights: " + quote(entries[0], 200) + " must contain one tensor with one dim",
                       {}, hint);
    const at::Tensor values = tensors.begin()->second.to(at::kDouble).contiguous();
    return {values.const_data_ptr<double>(), values.const_data_ptr<double>() + values.numel()};
  }
  for (const std::string& entry : entries) {
    const std::optional<double> weight = number_of(entry);
    if (!weight) throw UsageError("--class-weights: " + quote(entry) + " is not a weight", {}, hint);
    weights.push_back(*weight);
  }
  return weights;
}

std::vector<train::RateScale> read_rate_scales(const std::vector<std::string>& entries) {
  std::vector<train::RateScale> scales;
  for (const std::string& entry : entries) {
    const auto equals = entry.find('=');
    const auto factor = equals == std::string::npos ? std::nullopt : number_of(entry.substr(equals + 1));
    if (equals == 0 || !factor)
      throw UsageError("--lr-scale: " + quote(entry) + " is not a pattern with a factor", {},
                       "write PATTERN=FACTOR, such as head=10 or blocks.*.norm=0.1");
    scales.push_back({entry.substr(0, equals), *factor});
  }
  return scales;
}

}  // namespace penstock::tool
