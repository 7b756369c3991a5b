// Module paths that tell calls apart: `block@1.norm@1` is what the second call of `block` ran in `norm`.
#pragma once

#include <penstock/graph/ir.h>

#include <string>
#include <string_view>

namespace penstock {

//! Whether the path is the module's or that of one inside of it.
bool within(std::string_view path, std::string_view module);

//! How many dots and one: `layers.2` has 2.
std::size_t components(std::string_view path);

//! Says that the node ran in this call of the module, which is its own or one around it. First calls are 0.
void set_call(Node& node, std::string_view module, int call);

//! Which call of the module the node ran in.
int call_of(const Node& node, std::string_view module);

//! The node's module with its calls, as the text form has it.
std::string module_text(const Node& node);
void read_module_text(std::string_view text, Node& node);

//! `block@1` as `block` and 1; without a number every call is meant.
struct ModuleCall {
  std::string module;
  std::optional<int> call{};
};
ModuleCall parse_module_call(std::string_view text);

}  // namespace penstock
