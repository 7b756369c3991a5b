// Which operators of a graph multiply by a parameter or look rows up in one: what tells the styles of tensor
// parallelism how a weight is to be cut.
#pragma once

#include <penstock/graph/ir.h>

#include <string>
#include <vector>

namespace penstock {

struct WeightUse {
  enum class Kind { Linear, Table };

  std::size_t slot = 0;
  std::size_t node = 0;
  std::string module;  //!< of the node
  Kind kind = Kind::Linear;
  //! The dims of the parameter: outputs and inputs of a layer, features and rows of a table.
  std::int64_t out_dim = 0, in_dim = 1;
  ValueId input;   //!< that is multiplied, or the indices
  ValueId output;  //!< of the operator, before a bias that is added on its own
};

//! In the order of the nodes. Weights may be transposed or converted before they are used.
std::vector<WeightUse> weight_uses(const Graph& graph);

//! `a.b` of `a.b.weight`.
std::string parent_path(const std::string& name);

//! Whether a path is that of a module or of one inside it.
bool is_inside(const std::string& path, const std::string& module);

}  // namespace penstock
