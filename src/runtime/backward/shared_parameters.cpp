// Shared parameters, across ranks and within one rank.
#include "runtime/backward/shared_parameters.h"

#include "base/text.h"

#include <penstock/base/error.h>
#include <penstock/tensor/flatten.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>

namespace penstock::runtime {
namespace {

void check_locations(const PipelineSetup& setup, const SharedParameter& shared) {
  if (shared.size() < 2) throw UsageError("a shared parameter needs at least two locations");
  for (const ParameterLocation& location : shared) {
    if (location.stage.value >= 0 && location.stage.value < setup.program.num_stages()) continue;
    throw UsageError(str_cat("a shared parameter is declared for stage ", location.stage.value,
                             ", which the pipeline does not have"));
  }
}

}  // namespace

SharedParameters::SharedParameters(const PipelineSetup& setup) {
  const at::NoGradGuard no_grad;
  for (const SharedParameter& shared : setup.options.shared) {
    check_locations(setup, shared);
    Tie tie;
    std::vector<int> ranks;
    for (const ParameterLocation& location : shared) {
      const Rank holder = setup.rank_of(location.stage);
      if (std::find(ranks.begin(), ranks.end(), holder.value) == ranks.end()) ranks.push_back(holder.value);
      if (holder != setup.rank) continue;
      const at::Tensor copy = setup.stage(location.stage)->parameter(location.name);
      const auto same = [&](const at::Tensor& other) { return other.is_same(copy); };
      if (std::none_of(tie.copies.begin(), tie.copies.end(), same)) tie.copies.push_back(copy);
    }
    tie.first_here = setup.rank_of(shared.front().stage) == setup.rank;
    if (ranks.size() > 1) tie.group = setup.group.subgroup(ranks);  // collective over all ranks
    if (tie.copies.empty()) continue;
    for (const at::Tensor& copy : tie.copies) copy.copy_(tie.copies.front());
    if (tie.group) {
      // Distributed parameters: uses the local shards. All ranks of a pipeline hold the same shards.
      const at::Tensor value = tensor::flatten_dtensor(tie.copies.front()).local.contiguous().clone();
      tie.group->broadcast(value, 0);
      for (const at::Tensor& copy : tie.copies) tensor::flatten_dtensor(copy).local.copy_(value);
    }
    tie.earlier.resize(tie.copies.size());
    ties_.push_back(std::move(tie));
  }
}

void SharedParameters::begin_step() {
  for (Tie& tie : ties_) {
    for (std::size_t i = 0; i < tie.copies.size(); ++i) {
      tie.earlier[i] = tie.copies[i].grad();
      tie.copies[i].mutable_grad() = at::Tensor();
    }
  }
}

void SharedParameters::end_step() {
  const at::NoGradGuard no_grad;
  for (Tie& tie : ties_) {
    if (!tie.copies.front().requires_grad()) continue;  // frozen on all ranks
    at::Tensor sum;
    for (const at::Tensor& copy : tie.copies) {
      if (!copy.grad().defined()) continue;
      sum = sum.defined() ? sum.add_(copy.grad()) : copy.grad().contiguous().clone();
    }
    if (tie.group) {
      if (!sum.defined()) sum = at::zeros_like(tie.copies.front(), at::MemoryFormat::Contiguous);
      tie.group->all_reduce(tensor::synced_gradient(sum));
    }
    for (std::size_t i = 0; i < tie.copies.size(); ++i) {
      at::Tensor& grad = tie.copies[i].mutable_grad();
      grad = std::move(tie.earlier[i]);
      if (!sum.defined()) continue;
      if (grad.defined()) {
        grad.add_(sum);
      } else {
        grad = i == 0 ? sum : sum.clone();
      }
    }
  }
}

void SharedParameters::abandon_step() noexcept {
  for (Tie& tie : ties_) {
    for (std::size_t i = 0; i < tie.copies.size(); ++i) {
      if (tie.earlier[i].defined()) tie.copies[i].mutable_grad() = std::move(tie.earlier[i]);
    }
  }
}

bool SharedParameters::counted_elsewhere(const at::Tensor& parameter) const {
  for (const Tie& tie : ties_) {
    for (std::size_t i = 0; i < tie.copies.size(); ++i) {
      if (tie.copies[i].is_same(parameter)) return i > 0 || !tie.first_here;
    }
  }
  return false;
}

}  // namespace penstock::runtime
