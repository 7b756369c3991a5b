// Converts the JSON of an archive to a graph.
#pragma once

#include "base/io/json_reader.h"

#include <penstock/graph/ir.h>

#include <map>
#include <string>

namespace penstock::graph {

//! The location of a tensor in the archive.
struct WeightLocation {
  std::string record;
  ValueMeta meta;
  std::vector<std::int64_t> strides;
  std::int64_t offset = 0;  //!< in elements
  bool requires_grad = false;
  bool pickled = false;

  //! Number of elements from the first to the last; 0 for an empty tensor, -1 if the strides are invalid.
  std::int64_t span() const;
  //! Whether the two tensors share memory.
  bool overlaps(const WeightLocation& other) const;
  //! Whether both locations are the same tensor (a tied weight).
  bool same_tensor(const WeightLocation& other) const {
    return record == other.record && meta == other.meta && strides == other.strides && offset == other.offset;
  }
};

using WeightLocations = std::map<std::string, WeightLocation>;

//! Reads an index of weights or constants whose records are in `folder`.
void read_weight_locations(const JsonValue& config, const std::string& folder, const std::string& where,
                           WeightLocations& locations);

//! Reads `models/model.json`.
Graph import_program(const JsonValue& program, const WeightLocations& locations);

}  // namespace penstock::graph
