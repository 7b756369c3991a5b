// Where the elements of a distributed tensor are, told for each axis of its mesh: cut along a dim, whole on
// every rank, or in parts that are still to be reduced.
#pragma once

#include <penstock/comm/group.h>
#include <penstock/value/microbatch.h>  // Replicate: every rank of the axis has all of it

#include <c10/util/SmallVector.h>

#include <cstdint>
#include <string>

namespace penstock {

//! Each rank of the axis has a slice along `dim`, cut as `torch.chunk` does: ceil(size / ranks) each, the
//! last ones smaller or empty. A negative dim counts from the end where a tensor is at hand.
struct Shard {
  explicit Shard(std::int64_t d) : dim(d) {}
  std::int64_t dim;
};

//! Each rank has a contribution of full size; their reduction is the value.
struct Partial {
  explicit Partial(ReduceOp op = ReduceOp::Sum) : reduce(op) {}
  ReduceOp reduce;
};

//! One of the three.
class AxisPlacement {
 public:
  enum class Kind : std::uint8_t { Replicate, Shard, Partial };

  AxisPlacement() = default;   //!< replicated
  AxisPlacement(Replicate) {}  // NOLINT: a placement
  AxisPlacement(Shard s)
      : kind_(Kind::Shard), dim_(static_cast<std::int16_t>(s.dim)) {}    // NOLINT: a placement
  AxisPlacement(Partial p) : kind_(Kind::Partial), reduce_(p.reduce) {}  // NOLINT: a placement

  Kind kind() const { return kind_; }
  bool is_replicate() const { return kind_ == Kind::Replicate; }
  bool is_shard() const { return kind_ == Kind::Shard; }
  bool is_shard(std::int64_t dim) const { return kind_ == Kind::Shard && dim_ == dim; }
  bool is_partial() const { return kind_ == Kind::Partial; }
  //! Of a shard.
  std::int64_t dim() const { return dim_; }
  //! Of a partial.
  ReduceOp reduce() const { return reduce_; }

  //! `Shard(0)`, `Replicate`, `Partial(sum)`.
  std::string text() const;

  friend bool operator==(const AxisPlacement&, const AxisPlacement&) = default;

 private:
  Kind kind_ = Kind::Replicate;
  ReduceOp reduce_ = ReduceOp::Sum;
  std::int16_t dim_ = 0;
};

//! One for each axis of the mesh.
using Placements = c10::SmallVector<AxisPlacement, 4>;

//! `[Shard(0), Replicate]`.
std::string text(const Placements& placements);

}  // namespace penstock
