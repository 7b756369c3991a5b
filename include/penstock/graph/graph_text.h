// Converts graphs to readable text and parses it. Golden tests and bug reports use this text.
#pragma once

#include <penstock/graph/ir.h>

#include <string>
#include <string_view>

namespace penstock::graph {

//! The complete graph, one line per node.
std::string to_string(const Graph& graph);
//! The line of text for one node.
std::string to_string(const Graph& graph, const Node& node);

//! The inverse of `to_string`. The text does not contain the tensors of slots. Throws ParseError with line
//! and column.
Graph parse_graph(std::string_view text);

}  // namespace penstock::graph
