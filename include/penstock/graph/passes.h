// What can be known of a graph, and small rewrites: which nodes write memory, where values are read last,
// dead-node removal, train and eval mode.
#pragma once

#include <penstock/graph/ir.h>

#include <vector>

namespace penstock {

//! The arguments of the node whose memory it writes, in place or as running statistics.
std::vector<ValueId> written_values(const Node& node);

//! Whether the node does something beside its results: writes memory, draws random numbers, or checks.
bool has_side_effects(const Node& node);

//! Numbers the memory that tensors live in, by the alias notes of the operators' schemas. Where an operator
//! may return a view or a copy, a view is assumed.
void assign_storage(Graph& graph);

//! For each node, the values that no later node and no output reads; slots and unread results are left out.
std::vector<std::vector<ValueId>> last_uses(const Graph& graph);

//! The graph without nodes whose results nobody reads, and without values that are then not needed. Slots and
//! inputs stay. Random operators stay, so that the others draw the same numbers as before.
Graph remove_dead_nodes(const Graph& graph);

//! The graph in eval mode: every `train` or `training` flag off, no dropout in attention, running statistics
//! used and not counted.
Graph eval_graph(const Graph& graph);

//! The graph with the size and dtype of every value, for inputs of these sizes (one for each input; without
//! them, those that the graph says). Nothing is computed but sizes. UsageError where sizes depend on
//! elements, or where inputs or slots of unknown sizes are read.
Graph propagate_shapes(const Graph& graph, const std::vector<ValueMeta>& inputs = {});

//! Drops the values that nothing refers to and renumbers the rest in order of appearance.
Graph compact(const Graph& graph);

//! Throws UsageError unless every value is made before it is read, once, and arguments fit the schemas.
void check_graph(const Graph& graph);

}  // namespace penstock
