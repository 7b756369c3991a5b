// The units of a sharded model and when they are unsharded. A unit is gathered before its forward, with the
// next ones prefetched, and again before its backward, triggered by a hook on its outputs. It is reduced and
// resharded once all its gradients are accumulated. Reductions start in a fixed order, which ranks share even
// if their backward passes differ.
#pragma once

#include "parallel/replicate/leaf_hooks.h"
#include "parallel/shard/flat_shard.h"
#include "runtime/stage/hooked_module.h"

#include <penstock/parallel/sharded.h>
#include <penstock/runtime/module_call.h>

#include <memory>
#include <string>
#include <vector>

namespace penstock::parallel {

struct UnitSpec {
  const void* module = nullptr;  //!< the module whose calls are hooked; null for none
  std::vector<value::NamedTensor> parameters{};
};

//! The options of `fully_shard`, and of stages as far as units need them.
struct UnitOptions : ShardOptions {
  std::vector<std::string> separate{};
};

//! The groups, in addition to the sharding group, whose ranks hold different elements of the parameter.
std::vector<comm::Group> sharding_groups_of(const ShardedParameter& item);

//! The units of a sharded model.
struct Sharded::Impl : public std::enable_shared_from_this<Sharded::Impl> {
 public:
  //! The last unit is the root: it stays unsharded from its forward to the end of the backward.
  Impl(const std::vector<UnitSpec>& units, std::vector<std::string> order, const comm::Group& group,
       const UnitOptions& options);
  //! Installs the hooks.
  void attach(const std::vector<UnitSpec>& units);

  bool sync() const { return sync_; }
  void set_sync(bool sync) { sync_ = sync; }
  //! Gradients are accumulated locally until `reduce`.
  void set_manual() { manual_ = true; }
  //! With `set_manual`: the next backward accumulates the last gradients, and units are reduced as they
  //! complete. Finish with `reduce`.
  void begin_last();

  void start_unshard();
  void unshard();
  void reshard();
  void outdate();
  void reduce();
  void recover(const comm::Group& group, const std::optional<comm::Group>& replicas);

  std::vector<ShardedParameter> shards() const;
  std::vector<value::NamedTensor> gather(bool gradients) const;
  double clip_grad_norm(double max_norm, double norm_type) const;
  double combine_norm(double part, comm::ReduceOp op) const;
  //! The types to which arguments of the model or a unit, and the result of the model, are converted.
  std::optional<at::ScalarType> input_type() const {
    return options_.cast_inputs ? options_.compute_as : std::nullopt;
  }
  std::optional<at::ScalarType> output_type() const { return options_.output_as; }
  const comm::Group& group() const { return gather_; }

 private:
  struct Unit {
    std::vector<FlatShard> flats;
    bool in_backward = false;
  };
  struct Leaf {
    std::size_t unit, flat, entry;
  };
  //! The gradients of a flat shard that the current backward has not accumulated yet.
  struct Turn {
    std::size_t unit, flat;
    std::vector<bool> ready;
    std::size_t waiting = 0;
    bool launched = false;
  };
  class Hooks;

  bool stores_copies() const { return options_.storage == ParameterStorage::Copy; }
  bool is_root(std::size_t unit) const { return unit + 1 == units_.size(); }
  void start_gather(std::size_t unit);
  void finish_gather(std::size_t unit);
  void release(std::size_t unit);
  void before_forward(std::size_t unit);
  void after_forward(std::size_t unit, const std::vector<at::Tensor>& outputs);
  void before_backward(std::size_t unit);
  void begin();
  void watch_end();
  void added(std::size_t leaf);
  void check_open(const Turn& turn, const Leaf& location) const;
  void mark_ready(Turn& turn, std::size_t entry);
  void wait_last_reduction();
  void launch_full();
  void finish();
  void finish_reductions();
  std::vector<bool> used_anywhere();
  void abandon() noexcept;
  void use_groups(const comm::Group& group, const std::optional<comm::Group>& replicas);

  comm::Group gather_, reduce_;  //!< two groups, so that gathers and reductions need no common order
  UnitOptions options_;
  std::vector<std::string> order_;  //!< parameter names in model order
  std::vector<Unit> units_;
  std::vector<Leaf> leaves_;
  std::vector<Turn> turns_;                        //!< in the order of reduction
  std::vector<std::vector<std::size_t>> turn_of_;  //!< index into `turns_`, by unit and flat buffer
  std::vector<runtime::HookedModule> hooked_;
  LeafHooks hooks_;
  std::size_t next_ = 0;
  bool sync_ = true;
  bool manual_ = false;
  bool active_ = false;
  EndOfBackward end_of_backward_;
};

//! Access to the private parts of Sharded.
struct Access {
  static Sharded sharded(std::shared_ptr<Sharded::Impl> impl) { return Sharded(std::move(impl)); }
  static const std::shared_ptr<Sharded::Impl>& impl(const Sharded& sharded) { return sharded.impl_; }
};

}  // namespace penstock::parallel
