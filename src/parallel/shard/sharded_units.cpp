// When units are gathered, freed and reduced.
#include "parallel/shard/sharded_units.h"

#include "base/text.h"
#include "parallel/shard/cast.h"
#include "tensor/norm_sum.h"

#include <penstock/base/error.h>
#include <penstock/tensor/grad_norm.h>

#include <ATen/ATen.h>

#include <algorithm>
#include <map>
#include <tuple>

namespace penstock::parallel {

class Sharded::Impl::Hooks final : public runtime::detail::CallHooks {
 public:
  Hooks(std::weak_ptr<Sharded::Impl> units, std::size_t unit) : units_(std::move(units)), unit_(unit) {}
  void before() override {
    if (const auto units = units_.lock()) units->before_forward(unit_);
  }
  void after(const std::vector<at::Tensor>& outputs) override {
    if (const auto units = units_.lock()) units->after_forward(unit_, outputs);
  }
  at::Tensor argument(const at::Tensor& tensor, std::size_t /*index*/) override {
    const auto units = units_.lock();
    return units ? cast_floating(tensor, units->input_type()) : tensor;
  }
  at::Tensor result(const at::Tensor& tensor, std::size_t /*index*/) override {
    const auto units = units_.lock();
    return units && units->is_root(unit_) ? cast_floating(tensor, units->output_type()) : tensor;
  }
  bool exclusive() const override { return true; }

 private:
  std::weak_ptr<Sharded::Impl> units_;
  std::size_t unit_;
};

Sharded::Impl::Impl(const std::vector<UnitSpec>& units, std::vector<std::string> order,
                    const comm::Group& group, const UnitOptions& options)
    : gather_(group), reduce_(group), options_(options), order_(std::move(order)) {
  if (stores_copies() && options.replicas) {
    throw UsageError("ParameterStorage::Copy replicates over the group, so `replicas` must not be set", {},
                     "pass the group of all replicas, or set `storage` to ParameterStorage::Shard");
  }
  use_groups(group, options.replicas);
  for (std::size_t u = 0; u < units.size(); ++u) {
    Unit& unit = units_.emplace_back();
    std::map<std::tuple<std::string, at::ScalarType, bool>, std::vector<value::NamedTensor>> kinds;
    for (const value::NamedTensor& item : units[u].parameters) {
      const bool separate =
          std::find(options.separate.begin(), options.separate.end(), item.name) != options.separate.end();
      kinds[{separate ? item.name : "", item.tensor.scalar_type(), item.tensor.requires_grad()}].push_back(
          item);
    }
    for (const auto& [kind, parameters] : kinds) {
      unit.flats.emplace_back(parameters, gather_, reduce_, options_);
      if (!unit.flats.back().trains()) continue;
      for (std::size_t entry = 0; entry < parameters.size(); ++entry)
        leaves_.push_back({u, unit.flats.size() - 1, entry});
    }
  }
  // Backwards visit the units in reverse. The root, with the first and last parameters, finishes last.
  turn_of_.resize(units_.size());
  const auto add_turns = [&](std::size_t u) {
    for (std::size_t f = 0; f < units_[u].flats.size(); ++f) {
      turn_of_[u].push_back(turns_.size());
      if (units_[u].flats[f].trains()) turns_.push_back({u, f, {}, 0, false});
    }
  };
  for (std::size_t u = units_.size() - 1; u-- > 0;) add_turns(u);
  add_turns(units_.size() - 1);
}

void Sharded::Impl::use_groups(const comm::Group& group, const std::optional<comm::Group>& replicas) {
  // With ParameterStorage::Copy: each rank alone holds all shards, and the entire group holds the same ones.
  gather_ = stores_copies() ? *group.split(group.rank()) : group;
  reduce_ = gather_.size() > 1 ? *gather_.split(0, gather_.rank()) : gather_;
  options_.replicas = stores_copies() ? group : replicas;
}

void Sharded::Impl::attach(const std::vector<UnitSpec>& units) {
  for (std::size_t u = 0; u < units.size(); ++u) {
    if (units[u].module != nullptr)
      hooked_.emplace_back(units[u].module, std::make_shared<Hooks>(weak_from_this(), u));
  }
  for (std::size_t leaf = 0; leaf < leaves_.size(); ++leaf) {
    const Leaf& location = leaves_[leaf];
    hooks_.add(units_[location.unit].flats[location.flat].parameter(location.entry),
               [weak = weak_from_this(), leaf] {
                 if (const auto self = weak.lock()) self->added(leaf);
               });
  }
  reshard();
}

void Sharded::Impl::start_gather(std::size_t unit) {
  for (FlatShard& flat : units_[unit].flats) flat.start_gather();
}
void Sharded::Impl::finish_gather(std::size_t unit) {
  start_gather(unit);
  for (FlatShard& flat : units_[unit].flats) flat.finish_gather();
}
void Sharded::Impl::release(std::size_t unit) {
  for (FlatShard& flat : units_[unit].flats) flat.release();
}

void Sharded::Impl::start_unshard() {
  for (std::size_t u = 0; u < units_.size(); ++u) start_gather(u);
}
void Sharded::Impl::unshard() {
  start_unshard();
  for (std::size_t u = 0; u < units_.size(); ++u) finish_gather(u);
}
void Sharded::Impl::reshard() {
  for (std::size_t u = 0; u < units_.size(); ++u) release(u);
}

void Sharded::Impl::outdate() {
  for (Unit& unit : units_)
    for (FlatShard& flat : unit.flats) flat.outdate();
}

void Sharded::Impl::before_forward(std::size_t unit) {
  finish_gather(unit);
  if (units_[unit].in_backward) return;  // recomputation
  const std::size_t first = is_root(unit) ? 0 : unit + 1;
  const std::size_t ahead = static_cast<std::size_t>(std::max(0, options_.prefetch));
  for (std::size_t u = first; u + 1 < units_.size() && u < first + ahead; ++u) start_gather(u);
}

void Sharded::Impl::after_forward(std::size_t unit, const std::vector<at::Tensor>& outputs) {
  if (units_[unit].in_backward) return;
  bool graph = false;
  for (const at::Tensor& output : outputs) {
    if (!output.defined() || !output.requires_grad() || !output.grad_fn()) continue;
    graph = true;
    output.register_hook([weak = weak_from_this(), unit](const at::Tensor&) {
      if (const auto self = weak.lock()) self->before_backward(unit);
    });
  }
  // If autograd records, the root and the last unit are needed again immediately.
  const bool last = unit + 2 == units_.size();
  if (!graph || (options_.reshard_after_forward && !is_root(unit) && !last)) release(unit);
}

void Sharded::Impl::before_backward(std::size_t unit) {
  watch_end();
  if (units_[unit].in_backward) return;
  units_[unit].in_backward = true;
  if (options_.prefetch == 0) wait_last_reduction();  // least memory: one unsharded unit at a time
  finish_gather(unit);
  for (int ahead = 1; ahead <= options_.prefetch && unit >= static_cast<std::size_t>(ahead); ++ahead)
    start_gather(unit - static_cast<std::size_t>(ahead));
}

void Sharded::Impl::begin() {
  active_ = true;
  next_ = 0;
  for (Turn& turn : turns_) {
    turn.waiting = units_[turn.unit].flats[turn.flat].count();
    turn.ready.assign(turn.waiting, false);
    turn.launched = false;
  }
}

void Sharded::Impl::watch_end() {
  if (!active_) begin();
  if (manual_) return;
  end_of_backward_.watch(weak_from_this(), [this](bool success) { success ? finish() : abandon(); });
}

void Sharded::Impl::added(std::size_t leaf) {
  const Leaf& location = leaves_[leaf];
  if (manual_ && !active_) return units_[location.unit].flats[location.flat].collect(location.entry);
  watch_end();
  Turn& turn = turns_[turn_of_[location.unit][location.flat]];
  check_open(turn, location);
  units_[location.unit].flats[location.flat].collect(location.entry);
  mark_ready(turn, location.entry);
}

void Sharded::Impl::check_open(const Turn& turn, const Leaf& location) const {
  if (!turn.launched) return;
  const std::string name = units_[location.unit].flats[location.flat].shard(location.entry).name;
  throw UsageError("parameter " + quote(name) + " received another gradient after its unit was reduced",
                   {.tensor = name}, "several recomputed modules use it: run the backward under no_sync()");
}

void Sharded::Impl::mark_ready(Turn& turn, std::size_t entry) {
  if (turn.ready[entry]) return;
  turn.ready[entry] = true;
  if (--turn.waiting > 0) return;
  if (!is_root(turn.unit) && !manual_) {
    const auto open = [&](const Turn& other) { return other.unit == turn.unit && other.waiting > 0; };
    if (std::none_of(turns_.begin(), turns_.end(), open)) release(turn.unit);
  }
  if (sync_) launch_full();
}

void Sharded::Impl::wait_last_reduction() {
  if (next_ > 0) units_[turns_[next_ - 1].unit].flats[turns_[next_ - 1].flat].wait_reduce();
}

void Sharded::Impl::launch_full() {
  while (next_ < turns_.size() && turns_[next_].waiting == 0) {
    // One reduction at a time, concurrent with the backward of the next unit: full gradients must not pile
    // up.
    wait_last_reduction();
    Turn& turn = turns_[next_++];
    turn.launched = true;
    units_[turn.unit].flats[turn.flat].start_reduce();
  }
}

std::vector<bool> Sharded::Impl::used_anywhere() {
  std::vector<bool> used(leaves_.size(), true);
  if (!options_.find_unused) return used;
  const at::Tensor flags = at::zeros({static_cast<std::int64_t>(leaves_.size())}, at::kInt);
  for (std::size_t i = 0; i < leaves_.size(); ++i) {
    const Leaf& location = leaves_[i];
    if (units_[location.unit].flats[location.flat].present(location.entry)) flags.data_ptr<int>()[i] = 1;
  }
  reduce_.all_reduce(flags, comm::ReduceOp::Max);
  if (options_.replicas) options_.replicas->all_reduce(flags, comm::ReduceOp::Max);
  for (std::size_t i = 0; i < leaves_.size(); ++i) used[i] = flags.data_ptr<int>()[i] != 0;
  return used;
}

void Sharded::Impl::finish_reductions() try {
  for (Turn& turn : turns_) turn.waiting = 0;
  launch_full();
  wait_last_reduction();  // every rank must finish it before the next message over the replicas
  const std::vector<bool> used = used_anywhere();
  for (const Turn& turn : turns_) {
    std::vector<bool> of_flat;
    for (std::size_t i = 0; i < leaves_.size(); ++i) {
      if (leaves_[i].unit == turn.unit && leaves_[i].flat == turn.flat) of_flat.push_back(used[i]);
    }
    units_[turn.unit].flats[turn.flat].finish_reduce(of_flat);
  }
} catch (...) {
  abandon();
  throw;
}

void Sharded::Impl::finish() {
  if (sync_) finish_reductions();
  for (Unit& unit : units_) unit.in_backward = false;
  reshard();
  active_ = false;
  end_of_backward_.reset();
}

void Sharded::Impl::begin_last() {
  if (active_) abandon();
  begin();
}

void Sharded::Impl::reduce() {
  if (!active_) begin();
  // Includes gradients from modules that accumulate without the autograd engine.
  for (const Leaf& location : leaves_) {
    FlatShard& flat = units_[location.unit].flats[location.flat];
    if (flat.parameter(location.entry).grad().defined())
      check_open(turns_[turn_of_[location.unit][location.flat]], location);
    flat.collect(location.entry);
  }
  finish_reductions();
  active_ = false;
}

void Sharded::Impl::abandon() noexcept {
  for (Unit& unit : units_) {
    unit.in_backward = false;
    for (FlatShard& flat : unit.flats) flat.abandon();
  }
  active_ = false;
  end_of_backward_.reset();
}

void Sharded::Impl::recover(const comm::Group& group, const std::optional<comm::Group>& replicas) {
  const comm::Group& before = stores_copies() ? *options_.replicas : gather_;
  if (group.size() != before.size() || group.rank() != before.rank())
    throw UsageError("a sharded model can only recover with the same number and order of ranks", {},
                     "to change the number of ranks, load a checkpoint");
  abandon();
  use_groups(group, replicas);
  for (Unit& unit : units_) {
    for (FlatShard& flat : unit.flats) flat.set_groups(gather_, reduce_, options_.replicas);
  }
}

std::vector<ShardedParameter> Sharded::Impl::shards() const {
  std::map<std::string, ShardedParameter> by_name;
  for (const Unit& unit : units_) {
    for (const FlatShard& flat : unit.flats) {
      for (std::size_t entry = 0; entry < flat.count(); ++entry) {
        ShardedParameter shard = flat.shard(entry);
        by_name[shard.name] = shard;
      }
    }
  }
  std::vector<ShardedParameter> all;
  for (const std::string& name : order_) all.push_back(by_name.at(name));
  return all;
}

std::vector<value::NamedTensor> Sharded::Impl::gather(bool gradients) const {
  std::map<std::string, at::Tensor> by_name;
  for (const Unit& unit : units_) {
    for (const FlatShard& flat : unit.flats) {
      const at::Tensor full = flat.gather_full(gradients);
      for (std::size_t entry = 0; entry < flat.count(); ++entry) {
        const bool there = !gradients || flat.has_gradient(entry);
        by_name[flat.shard(entry).name] = there ? flat.extract_entry(full, entry) : at::Tensor();
      }
    }
  }
  std::vector<value::NamedTensor> all;
  for (const std::string& name : order_) all.push_back({name, by_name.at(name)});
  return all;
}

std::vector<comm::Group> sharding_groups_of(const ShardedParameter& item) {
  return item.spec ? sharding_groups(item.spec->mesh, item.spec->placements) : std::vector<comm::Group>();
}

double Sharded::Impl::combine_norm(double part, comm::ReduceOp op) const {
  if (gather_.size() == 1) return part;
  const at::Tensor sum = at::full({1}, part, at::kDouble);
  gather_.all_reduce(sum, op);
  return sum.item<double>();
}

double Sharded::Impl::clip_grad_norm(double max_norm, double norm_type) const {
  const at::NoGradGuard no_grad;
  tensor::GradNorm norm(norm_type);
  for (const ShardedParameter& item : shards()) {
    if (item.shard.requires_grad()) norm.add(item.shard.grad(), sharding_groups_of(item));
  }
  const double total = norm.norm_of(combine_norm(norm.reduce(), norm.reduce_op()));
  const double scale = tensor::clip_scale(total, max_norm);
  if (scale == 1) return total;
  std::vector<at::Tensor> gradients;
  for (const ShardedParameter& item : shards()) gradients.push_back(item.shard.grad());
  tensor::scale_gradients(gradients, scale);
  return total;
}

}  // namespace penstock::parallel
