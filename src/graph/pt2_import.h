// From an archive's JSON to a graph.
#pragma once

#include "base/io/json_reader.h"

#include <penstock/graph/ir.h>

#include <map>
#include <string>

namespace penstock {

//! Where a tensor of the archive lies.
struct WeightPlace {
  std::string record;
  ValueMeta meta;
  std::vector<std::int64_t> strides;
  std::int64_t offset = 0;  //!< in elements
  bool requires_grad = false;
  bool pickled = false;

  //! Elements from the first to the last; 0 for an empty tensor, -1 where strides do not fit the sizes.
  std::int64_t span() const;
  //! Whether some memory is of both.
  bool overlaps(const WeightPlace& other) const;
  //! Whether it is the same tensor: a tied weight.
  bool same_tensor(const WeightPlace& other) const {
    return record == other.record && meta == other.meta && strides == other.strides && offset == other.offset;
  }
};

using WeightPlaces = std::map<std::string, WeightPlace>;

//! Reads an index of weights or constants; `folder` is where its records lie.
void read_weight_places(const JsonValue& config, const std::string& folder, const std::string& where,
                        WeightPlaces& places);

//! Reads `models/model.json`.
Graph import_program(const JsonValue& program, const WeightPlaces& places);

}  // namespace penstock
