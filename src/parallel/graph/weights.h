// Finds the operators of a graph that multiply by a parameter or look up rows in it. Tensor-parallel styles
// derive from them how to shard a weight.
#pragma once

#include <penstock/graph/ir.h>

#include <string>
#include <vector>

namespace penstock::parallel {

struct WeightUse {
  enum class Kind { Linear, Table };

  std::size_t slot = 0;
  std::size_t node = 0;
  std::string module;  //!< the module of the node
  Kind kind = Kind::Linear;
  //! The dims of the parameter: outputs and inputs of a layer, or features and rows of an embedding table.
  std::int64_t out_dim = 0, in_dim = 1;
  graph::ValueId input;   //!< the other factor, or the indices
  graph::ValueId output;  //!< the result of the operator, before a separate bias is added
};

//! All uses, in node order. Weights may be transposed or converted before use.
std::vector<WeightUse> weight_uses(const graph::Graph& graph);

//! `a.b` of `a.b.weight`.
std::string parent_path(const std::string& name);

//! Whether `path` is the module or one of its submodules.
bool is_inside(const std::string& path, const std::string& module);

}  // namespace penstock::parallel
