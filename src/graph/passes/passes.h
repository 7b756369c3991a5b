// Analyses and small rewrites of graphs: memory writes, last uses, dead-node removal, eval mode, dtypes,
// shape propagation.
#pragma once

#include <penstock/graph/ir.h>

#include <set>
#include <vector>

namespace penstock::graph {

//! Returns the arguments that the node writes, in place or as running statistics.
std::vector<ValueId> written_values(const Node& node);

//! Whether the node has effects other than its results: writes memory, draws random numbers, or asserts.
bool has_side_effects(const Node& node);

//! Assigns `Value::storage` from the alias annotations of the operator schemas. If an operator may return a
//! view or a copy, assumes a view.
void assign_storage(Graph& graph);

//! Returns, per node, the values that no later node and no output reads, except slots and unused results.
std::vector<std::vector<ValueId>> last_uses(const Graph& graph);

//! Removes nodes whose results are unused, and the values that become unused. Keeps slots and inputs. Keeps
//! random operators, so that the remaining ones draw the same numbers.
Graph remove_dead_nodes(const Graph& graph);

//! Returns the graph in eval mode: `train` and `training` flags are false, attention has no dropout, running
//! statistics are used but not updated.
Graph eval_graph(const Graph& graph);

//! The reduced dtypes (bfloat16, float16) of the parameters.
std::set<at::ScalarType> reduced_parameter_dtypes(const Graph& graph);

//! Returns the graph with `to` for every value and every dtype argument that is `from`. The caller converts
//! the tensors of the slots. Autocast regions keep their dtype.
Graph convert_dtype(const Graph& graph, at::ScalarType from, at::ScalarType to);

//! Sets the sizes and dtype of every value for the given inputs (one per graph input; by default the sizes
//! recorded in the graph). Runs on meta tensors. Throws UsageError if sizes depend on tensor elements, or if
//! a node reads an input or slot of unknown size.
Graph propagate_shapes(const Graph& graph, const std::vector<ValueMeta>& inputs = {});

//! Drops unreferenced values and renumbers the rest in order of appearance.
Graph compact(const Graph& graph);

//! Throws UsageError unless every value is defined exactly once, before its first use, and all arguments
//! match the schemas.
void check_graph(const Graph& graph);

}  // namespace penstock::graph
