// What the stages of a model contain, for reports.
#pragma once

#include <penstock/pipe/pipe.h>

#include <cstdint>
#include <string>
#include <vector>

namespace penstock::tool {

//! Floating-point operations per second of a rank where times are estimated, not measured.
inline constexpr double kDefaultFlops = 1e11;

//! The number of elements in all parameters (or buffers) of a graph.
std::size_t elements_of(const graph::Graph& graph, graph::Slot::Kind kind);

//! The modules of a stage. Submodules of a module that lies entirely in this stage are omitted.
std::vector<std::string> modules_of(const pipe::Pipe& pipe, StageId stage);

//! Joins module names; consecutive ones become a range: `token, blocks.0 … blocks.3, norm`.
std::string module_ranges(const std::vector<std::string>& modules);

}  // namespace penstock::tool
