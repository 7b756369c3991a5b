// Module paths with call numbers: `block@1.norm@1` is the second call of `norm`, made by the second call of
// `block`.
#pragma once

#include <penstock/graph/ir.h>

#include <string>
#include <string_view>

namespace penstock::graph {

//! Whether `path` is `module` or one of its submodules.
bool within(std::string_view path, std::string_view module);

//! The number of components of a path: 2 for `layers.2`.
std::size_t components(std::string_view path);

//! Sets the call number of `module`, which is the node's module or one of its parents. The first call is 0.
void set_call(Node& node, std::string_view module, int call);

//! Returns the call number of the module in which the node ran.
int call_of(const Node& node, std::string_view module);

//! The node's module path with call numbers, as written in graph text.
std::string module_text(const Node& node);
void read_module_text(std::string_view text, Node& node);

//! A module and a call number: `block@1` is `block` and 1. Without a number, it means every call.
struct ModuleCall {
  std::string module;
  std::optional<int> call{};
};
ModuleCall parse_module_call(std::string_view text);

}  // namespace penstock::graph
