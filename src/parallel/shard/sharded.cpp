// Assigns the parameters of a module to units.
#include "parallel/replica_agreement.h"
#include "parallel/shard/sharded_units.h"

#include <penstock/base/error.h>
#include <penstock/parallel/sharded.h>

#include <torch/nn/module.h>

#include <algorithm>
#include <map>
#include <set>

namespace penstock::parallel {
namespace {

// The unit of each parameter: the innermost one that contains it, or the root if several modules share it.
std::map<const void*, std::size_t> owners(const torch::nn::Module& module,
                                          const std::vector<std::shared_ptr<torch::nn::Module>>& units) {
  std::map<const void*, std::size_t> owner;
  // Parameter count of the owning unit: fewer means more deeply nested.
  std::map<const void*, std::size_t> depth;
  for (std::size_t u = 0; u < units.size(); ++u) {
    const std::vector<at::Tensor> parameters = units[u]->parameters();
    for (const at::Tensor& parameter : parameters) {
      const void* const key = parameter.unsafeGetTensorImpl();
      const auto found = owner.find(key);
      if (found != owner.end() && depth[key] <= parameters.size()) continue;
      owner[key] = u;
      depth[key] = parameters.size();
    }
  }
  // A name outside of the owner means that another module uses the parameter too.
  std::map<const void*, std::string> prefix;
  for (const auto& item : module.named_modules("", false)) prefix[item.value().get()] = item.key() + ".";
  for (const auto& item : module.named_parameters()) {
    const auto found = owner.find(item.value().unsafeGetTensorImpl());
    if (found == owner.end() || found->second == units.size()) continue;
    const auto where = prefix.find(units[found->second].get());
    if (where == prefix.end()) throw UsageError("a unit is not a submodule of the sharded module");
    if (item.key().starts_with(where->second)) continue;
    found->second = units.size();
  }
  return owner;
}

std::vector<std::string> names(const std::vector<value::NamedTensor>& items) {
  std::vector<std::string> all;
  for (const value::NamedTensor& item : items) all.push_back(item.name);
  return all;
}

Sharded make(const std::vector<value::NamedTensor>& parameters, const std::vector<UnitSpec>& specs,
             const comm::Group& group, const UnitOptions& options) {
  check_agreement(group, parameters, {});
  std::vector<at::Tensor> values;
  for (const value::NamedTensor& item : parameters) {
    if (!item.tensor.is_meta()) values.push_back(item.tensor);
  }
  if (options.broadcast_parameters) {
    if (options.replicas) broadcast_values(*options.replicas, values);
    broadcast_values(group, values);
  }
  auto units = std::make_shared<Sharded::Impl>(specs, names(parameters), group, options);
  units->attach(specs);
  return Access::sharded(std::move(units));
}

// Parameters in model order, about `limit` bytes per unit. The backward pass computes the gradients of the
// first parameters last, so they become the last unit, which is reduced last.
std::vector<UnitSpec> by_bytes(const std::vector<value::NamedTensor>& parameters, std::int64_t limit) {
  std::vector<UnitSpec> units(1);
  std::int64_t bytes = 0;
  for (const value::NamedTensor& item : parameters) {
    if (bytes >= limit) {
      units.emplace_back();
      bytes = 0;
    }
    units.back().parameters.push_back(item);
    bytes += static_cast<std::int64_t>(tensor::flatten_dtensor(item.tensor).local.nbytes());
  }
  std::rotate(units.begin(), units.begin() + 1, units.end());
  return units;
}

UnitOptions unit_options(const StageShardOptions& stage) {
  UnitOptions options;
  options.storage = stage.storage;
  options.compute_as = stage.compute_as;
  options.store_as = stage.store_as;
  options.cast_inputs = stage.cast_inputs;
  options.output_as = stage.output_as;
  options.reduce_as = stage.reduce_as;
  options.replicas = stage.replicas;
  options.find_unused = stage.find_unused;
  options.broadcast_parameters = stage.broadcast_parameters;
  options.device = stage.device;
  options.separate = stage.separate;
  return options;
}

}  // namespace

Sharded fully_shard(const std::shared_ptr<torch::nn::Module>& module, const comm::Group& group,
                    ShardOptions options, const std::vector<std::shared_ptr<torch::nn::Module>>& units) {
  const std::vector<value::NamedTensor> parameters = each_once(listed(module->named_parameters()));
  const auto owner = owners(*module, units);
  std::vector<UnitSpec> specs;
  for (const auto& unit : units) specs.push_back({dynamic_cast<const void*>(unit.get()), {}});
  specs.push_back({dynamic_cast<const void*>(module.get()), {}});
  for (const value::NamedTensor& item : parameters) {
    const auto found = owner.find(item.tensor.unsafeGetTensorImpl());
    specs[found == owner.end() ? units.size() : found->second].parameters.push_back(item);
  }
  return make(parameters, specs, group, {std::move(options)});
}

Sharded shard_manually(const runtime::StageModule& module, const comm::Group& group,
                       const StageShardOptions& options) {
  const std::vector<value::NamedTensor> parameters = each_once(module.parameters());
  Sharded sharded = make(parameters, by_bytes(parameters, options.unit_bytes), group, unit_options(options));
  Access::impl(sharded)->set_manual();
  return sharded;
}

Sharded::Sharded(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
Sharded::Sharded(Sharded&&) noexcept = default;
Sharded& Sharded::operator=(Sharded&&) noexcept = default;
Sharded::~Sharded() = default;

Sharded::NoSync::NoSync(std::shared_ptr<Impl> impl) : impl_(std::move(impl)), before_(impl_->sync()) {
  impl_->set_sync(false);
}
Sharded::NoSync::~NoSync() {
  impl_->set_sync(before_);
}

std::vector<at::Tensor> Sharded::parameters() const {
  std::vector<at::Tensor> all;
  for (const ShardedParameter& item : impl_->shards()) {
    if (item.shard.requires_grad() && item.shard.numel() > 0) all.push_back(item.shard);
  }
  return all;
}
std::vector<ShardedParameter> Sharded::shards() const {
  return impl_->shards();
}
double Sharded::clip_grad_norm(double max_norm, double norm_type) {
  return impl_->clip_grad_norm(max_norm, norm_type);
}
std::vector<value::NamedTensor> Sharded::gather_parameters() const {
  return impl_->gather(false);
}
std::vector<value::NamedTensor> Sharded::gather_gradients() const {
  return impl_->gather(true);
}
void Sharded::unshard() {
  impl_->unshard();
}
void Sharded::reshard() {
  impl_->reshard();
  impl_->outdate();
}
void Sharded::reduce() {
  impl_->reduce();
}
void Sharded::recover(const comm::Group& group, std::optional<comm::Group> replicas) {
  impl_->recover(group, replicas);
}

}  // namespace penstock::parallel
