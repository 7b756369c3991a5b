// The value that describes a split, and the defaults of the interface of split models.
#include "base/text.h"

#include <penstock/base/error.h>
#include <penstock/train/model.h>

#include <charconv>

namespace penstock::train {

std::string to_string(const ModelSplit& split) {
  std::vector<std::string> positions;
  for (const std::size_t position : split.positions) positions.push_back(std::to_string(position));
  return join(positions, " ");
}

ModelSplit parse_model_split(std::string_view text) {
  ModelSplit split;
  const char* next = text.data();
  const char* const end = next + text.size();
  while (next != end) {
    std::size_t position = 0;
    const auto [after, error] = std::from_chars(next, end, position);
    const std::size_t least = split.positions.empty() ? 1 : split.positions.back() + 1;
    if (error != std::errc() || position < least || (after != end && (*after != ' ' || after + 1 == end)))
      throw ParseError(quote(text) + " is not a list of ascending split positions");
    split.positions.push_back(position);
    next = after == end ? end : after + 1;
  }
  return split;
}

void StagedModel::check_tensor_ranks(int ranks) const {
  if (ranks > 1)
    throw UsageError("this model does not support tensor parallelism", {},
                     "use 1 tensor-parallel rank, with more pipeline ranks or replicas");
}

void StagedModel::recompute_modules(const std::vector<std::string>& patterns) {
  if (!patterns.empty())
    throw UsageError("this model does not support the recomputation of single modules", {},
                     "recompute whole stages, or implement StagedModel::recompute_modules");
}

}  // namespace penstock::train
