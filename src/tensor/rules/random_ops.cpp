// Random fills, computed per element of the global tensor, so that values do not depend on the placements. A
// generator argument (such as that of a RandomScope) only supplies the key; it must be in the same state on
// every rank.
#include "tensor/rules/random_draws.h"
#include "tensor/rules/rules.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/ones_like.h>

#include <limits>

namespace penstock::tensor {
namespace {

void shard_only_options(const OpCall& call, int axis, Options& options) {
  const AxisPlacement here = call.at(0, axis);
  if (!here.is_shard()) return;
  Option option = call.option();
  option.in[0] = option.out[0] = here;
  options.push_back(option);
}

std::uint64_t key_of(const OpCall& call) {
  const c10::IValue& given = call.arg(call.count() - 1);
  if (given.isGenerator()) {
    const at::Generator generator = given.toGenerator();
    at::GeneratorImpl& state = *generator.unsafeGetGeneratorImpl();
    const std::lock_guard lock(state.mutex_);
    if (auto* cpu = dynamic_cast<at::CPUGeneratorImpl*>(&state)) return cpu->random64();
    // The generators of devices count the numbers that they drew from a seed, in blocks of four.
    const std::uint64_t offset = state.get_offset();
    state.set_offset(offset + 4);
    return draw_key(state.current_seed(), offset);
  }
  return next_key(*call.mesh);
}

void fill(const OpCall& call, const OpPlan& plan, const Distribution& distribution) {
  const std::uint64_t key = key_of(call);
  const at::Tensor local = call.arg(0).toTensor();
  fill_random(local, call.sizes(0), plan.in[0], *call.mesh, key, distribution);
  finish(call, local);
}

double number(const OpCall& call, std::size_t arg) {
  return call.arg(arg).toScalar().toDouble();
}

void bernoulli(const OpCall& call, const OpPlan& plan) {
  fill(call, plan, Bernoulli{number(call, 1)});
}
void uniform(const OpCall& call, const OpPlan& plan) {
  fill(call, plan, Uniform{number(call, 1), number(call, 2)});
}
void normal(const OpCall& call, const OpPlan& plan) {
  fill(call, plan, Normal{number(call, 1), number(call, 2)});
}
void integers_to(const OpCall& call, const OpPlan& plan) {
  fill(call, plan, Integers{0, call.arg(1).toInt()});
}
void integers(const OpCall& call, const OpPlan& plan) {
  const std::int64_t to = call.arg(2).isNone() ? std::int64_t{1} << 53U : call.arg(2).toInt();
  fill(call, plan, Integers{call.arg(1).toInt(), to});
}

//! native_dropout(input, p, train?) -> (output, mask): what `dropout` calls on devices. It takes no
//! generator, so the mask is drawn by an operator that does.
bool replace_dropout(const OpCall& call) {
  const at::Tensor input = call.arg(0).toTensor();
  const double p = call.arg(1).toDouble();
  const bool train = call.arg(2).isNone() || call.arg(2).toBool();
  at::Tensor noise = at::ones_like(input.detach());
  if (train && p > 0) noise.bernoulli_(1 - p).div_(p < 1 ? 1 - p : 1);
  finish(call, input * noise, noise.ne(0));
  return true;
}

}  // namespace

void add_random_rules(RuleTable& table) {
  table["bernoulli_.float"] = {.options = shard_only_options, .execute = bernoulli};
  table["uniform_"] = {.options = shard_only_options, .execute = uniform};
  table["normal_"] = {.options = shard_only_options, .execute = normal};
  table["random_.to"] = {.options = shard_only_options, .execute = integers_to};
  table["native_dropout"] = {.options = shard_only_options, .replace = replace_dropout, .composite = true};
  table["random_.from"] = {.options = shard_only_options, .execute = integers};
}

}  // namespace penstock::tensor
