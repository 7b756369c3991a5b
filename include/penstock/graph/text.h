// A graph as text that people read, golden tests compare and bug reports carry; and the way back.
#pragma once

#include <penstock/graph/ir.h>

#include <string>
#include <string_view>

namespace penstock {

std::string to_text(const Graph& graph);
std::string to_text(const Graph& graph, const Node& node);

//! The inverse of `to_text`; ParseError with line and column. Tensors of slots are not part of the text.
Graph parse_graph(std::string_view text);

}  // namespace penstock
