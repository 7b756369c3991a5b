// Construction of placements, and their conversion to text.
#include "base/text.h"

#include <penstock/base/error.h>
#include <penstock/tensor/placement.h>

#include <vector>

namespace penstock::tensor {

AxisPlacement::AxisPlacement(Shard s) : kind_(Kind::Shard), dim_(static_cast<std::int16_t>(s.dim)) {
  if (dim_ != s.dim) throw UsageError(str_cat("a tensor has no dim ", s.dim));
}

std::string to_string(const AxisPlacement& placement) {
  using Kind = AxisPlacement::Kind;
  switch (placement.kind()) {
    case Kind::Replicate:
      return "Replicate";
    case Kind::Shard:
      return str_cat("Shard(", placement.dim(), ")");
    case Kind::Partial:
      break;
  }
  switch (placement.reduce()) {
    case comm::ReduceOp::Sum:
      return "Partial(sum)";
    case comm::ReduceOp::Avg:
      return "Partial(avg)";
    case comm::ReduceOp::Product:
      return "Partial(product)";
    case comm::ReduceOp::Min:
      return "Partial(min)";
    case comm::ReduceOp::Max:
      return "Partial(max)";
  }
  return "Partial";
}

std::string to_string(const Placements& placements) {
  std::vector<std::string> parts;
  for (const AxisPlacement& placement : placements) parts.push_back(to_string(placement));
  return "[" + join(parts, ", ") + "]";
}

}  // namespace penstock::tensor
