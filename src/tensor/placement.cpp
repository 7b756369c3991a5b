// Placements as text.
#include <penstock/base/text.h>
#include <penstock/tensor/placement.h>

#include <vector>

namespace penstock {

std::string AxisPlacement::text() const {
  switch (kind_) {
    case Kind::Replicate:
      return "Replicate";
    case Kind::Shard:
      return "Shard(" + std::to_string(dim_) + ")";
    case Kind::Partial:
      break;
  }
  switch (reduce_) {
    case ReduceOp::Sum:
      return "Partial(sum)";
    case ReduceOp::Avg:
      return "Partial(avg)";
    case ReduceOp::Product:
      return "Partial(product)";
    case ReduceOp::Min:
      return "Partial(min)";
    case ReduceOp::Max:
      return "Partial(max)";
  }
  return "Partial";
}

std::string text(const Placements& placements) {
  std::vector<std::string> parts;
  for (const AxisPlacement& placement : placements) parts.push_back(placement.text());
  return "[" + join(parts, ", ") + "]";
}

}  // namespace penstock
