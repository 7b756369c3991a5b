// The units of a sharded model and when they are whole: gathered before a unit's forward, with the next ones
// ahead; again before its backward, told by a hook on its outputs; reduced and released once all its
// gradients are there. Reductions start in a fixed order, so that ranks whose backwards differ still agree.
#pragma once

#include "parallel/flat_shard.h"
#include "parallel/leaf_hooks.h"

#include <penstock/value/call.h>

#include <memory>
#include <string>
#include <vector>

namespace penstock {

struct UnitSpec {
  const void* module = nullptr;  //!< whose calls are hooked; null for none
  std::vector<NamedTensor> parameters{};
};

//! The groups beside the one that it is sharded over whose ranks hold other elements of the parameter.
std::vector<Group> spread_of(const ShardedParameter& item);

class ShardedUnits : public std::enable_shared_from_this<ShardedUnits> {
 public:
  //! The last unit is the root: whole from its forward to the end of the backward.
  ShardedUnits(const std::vector<UnitSpec>& units, std::vector<std::string> order, const Group& group,
               const ShardOptions& options);
  //! Puts the hooks on.
  void attach(const std::vector<UnitSpec>& units);

  bool sync() const { return sync_; }
  void set_sync(bool sync) { sync_ = sync; }
  //! Gradients are only collected, until `reduce`.
  void set_by_hand() { by_hand_ = true; }
  //! By hand: the next backward adds the last gradients, and units are reduced as they get theirs. Ends with
  //! `reduce`.
  void begin_last();

  void start_unshard();
  void unshard();
  void reshard();
  void reduce();
  void recover(const Group& group, const std::optional<Group>& replicas);

  std::vector<ShardedParameter> shards() const;
  std::vector<NamedTensor> gather(bool gradients) const;
  double clip_grad_norm(double max_norm, double norm_type) const;
  double combine_norm(double part, bool largest) const;
  //! What the model's or a unit's arguments are converted to, and the model's result.
  std::optional<at::ScalarType> input_type() const {
    return options_.cast_inputs ? options_.compute_as : std::nullopt;
  }
  std::optional<at::ScalarType> output_type() const { return options_.output_as; }
  const Group& group() const { return gather_; }

 private:
  struct Unit {
    std::vector<FlatShard> flats;
    bool in_backward = false;
  };
  struct Leaf {
    std::size_t unit, flat, entry;
  };
  //! Of one backward: which of a flat's gradients are still to come.
  struct Turn {
    std::size_t unit, flat;
    std::vector<bool> ready;
    std::size_t waiting = 0;
    bool launched = false;
  };
  class Hooks;

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
  void check_open(const Turn& turn, const Leaf& place) const;
  void mark_ready(Turn& turn, std::size_t entry);
  void wait_last_reduction();
  void launch_full();
  void finish();
  void finish_reductions();
  std::vector<bool> used_anywhere();
  void abandon() noexcept;
  void use_groups(const Group& group, const std::optional<Group>& replicas);

  Group gather_, reduce_;  //!< two groups, so that the order of one kind does not depend on the other's
  ShardOptions options_;
  std::vector<std::string> order_;  //!< of the parameters, in the model
  std::vector<Unit> units_;
  std::vector<Leaf> leaves_;
  std::vector<Turn> turns_;                        //!< in the order of reductions
  std::vector<std::vector<std::size_t>> turn_of_;  //!< by unit and flat
  std::vector<HookedModule> hooked_;
  LeafHooks hooks_;
  std::size_t next_ = 0;
  bool sync_ = true;
  bool by_hand_ = false;
  bool active_ = false;
  bool watched_ = false;
};

}  // namespace penstock
