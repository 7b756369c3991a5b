// Placements of a distributed tensor: per mesh axis, it is sharded along a dim, replicated, or partial (its
// values are still to be reduced).
#pragma once

#include <penstock/comm/group.h>
#include <penstock/value/microbatch.h>

#include <c10/util/SmallVector.h>

#include <cstdint>
#include <string>

namespace penstock::tensor {

using value::Replicate;  //!< each rank of the axis holds all elements

//! Each rank of the axis holds a slice along `dim`, split as by `torch.chunk`: ceil(size / ranks) each, the
//! last slices smaller or empty. A negative dim counts from the last dim of the tensor.
struct Shard {
  explicit Shard(std::int64_t d) : dim(d) {}
  std::int64_t dim;
};

//! Each rank holds a full-size contribution. The value is the reduction of all contributions.
struct Partial {
  explicit Partial(comm::ReduceOp op = comm::ReduceOp::Sum) : reduce(op) {}
  comm::ReduceOp reduce;
};

//! The placement of a tensor along one axis of its mesh.
class AxisPlacement {
 public:
  enum class Kind : std::uint8_t { Replicate, Shard, Partial };

  AxisPlacement() = default;   //!< replicated
  AxisPlacement(Replicate) {}  // NOLINT: implicit by design
  //! Throws UsageError if the dim does not fit in 16 bits.
  AxisPlacement(Shard s);                                                // NOLINT: implicit by design
  AxisPlacement(Partial p) : kind_(Kind::Partial), reduce_(p.reduce) {}  // NOLINT: implicit by design

  Kind kind() const { return kind_; }
  bool is_replicate() const { return kind_ == Kind::Replicate; }
  bool is_shard() const { return kind_ == Kind::Shard; }
  bool is_shard(std::int64_t dim) const { return kind_ == Kind::Shard && dim_ == dim; }
  bool is_partial() const { return kind_ == Kind::Partial; }
  //! The sharded dim; only valid for a shard.
  std::int64_t dim() const { return dim_; }
  //! The reduction; only valid for a partial.
  comm::ReduceOp reduce() const { return reduce_; }

  friend bool operator==(const AxisPlacement&, const AxisPlacement&) = default;

 private:
  Kind kind_ = Kind::Replicate;
  comm::ReduceOp reduce_ = comm::ReduceOp::Sum;
  std::int16_t dim_ = 0;
};

//! `Shard(0)`, `Replicate`, `Partial(sum)`.
std::string to_string(const AxisPlacement& placement);

//! One placement per axis of the mesh.
using Placements = c10::SmallVector<AxisPlacement, 4>;

//! `[Shard(0), Replicate]`.
std::string to_string(const Placements& placements);

}  // namespace penstock::tensor
