// Builds the submodules of an exported model from the names of its slots and the module paths of its nodes.
#include "graph/run/exported_tree.h"

namespace penstock::graph {
namespace {

// Only subclasses can access the parameter table of a module.
struct ParameterTable : torch::nn::Module {
  static torch::OrderedDict<std::string, at::Tensor>& of(torch::nn::Module& module) {
    return module.*(&ParameterTable::parameters_);
  }
};

struct SlotName {
  std::string module, leaf;
};

SlotName split_name(const std::string& name) {
  const std::size_t dot = name.rfind('.');
  if (dot == std::string::npos) return {"", name};
  return {name.substr(0, dot), name.substr(dot + 1)};
}

}  // namespace

ModuleTree::ModuleTree(torch::nn::Module& root, const Graph& graph, const std::vector<at::Tensor>& tensors)
    : modules_{&root}, indices_{{"", 0}} {
  // Parameters come first in a graph, in Python's order, so submodules are registered in that order.
  for (std::size_t i = 0; i < graph.slots.size(); ++i) {
    const Slot& slot = graph.slots[i];
    if (slot.kind == Slot::Kind::Constant) continue;
    const auto [path, leaf] = split_name(slot.names[0]);
    torch::nn::Module& owner = module_at(path);
    if (slot.kind == Slot::Kind::Parameter) {
      owner.register_parameter(leaf, tensors[i], tensors[i].requires_grad());
    } else {
      owner.register_buffer(leaf, tensors[i]);
    }
    if (slot.persistent) add_names(slot, i);
  }
  for (const Slot& slot : graph.slots) {
    if (slot.kind == Slot::Kind::Constant) continue;
    for (const std::string& name : slot.names) module_at(split_name(name).module);
  }
  for (const Node& node : graph.nodes) module_at(node.module);
}

torch::nn::Module& ModuleTree::module_at(const std::string& path) {
  const auto known = indices_.find(path);
  if (known != indices_.end()) return *modules_[known->second];
  const auto [parent_path, leaf] = split_name(path);
  torch::nn::Module& parent = module_at(parent_path);
  if (leaf.empty()) {  // not a valid name of a submodule
    indices_.emplace(path, indices_.at(parent_path));
    return parent;
  }
  owned_.push_back(parent.register_module(leaf, std::make_shared<torch::nn::Module>("Submodule")));
  modules_.push_back(owned_.back().get());
  indices_.emplace(path, modules_.size() - 1);
  return *modules_.back();
}

void ModuleTree::add_names(const Slot& slot, std::size_t index) {
  for (const std::string& name : slot.names) saved_[split_name(name).module].emplace_back(name, index);
}

std::vector<bool> ModuleTree::modes() const {
  std::vector<bool> modes;
  modes.reserve(modules_.size());
  for (const torch::nn::Module* module : modules_) modes.push_back(module->is_training());
  return modes;
}

void ModuleTree::set_modes(const std::vector<bool>& modes) {
  for (std::size_t i = 0; i < modules_.size(); ++i) modules_[i]->train(modes[i]);  // then its children
}

void ModuleTree::replace_parameter(const std::string& name, const at::Tensor& tensor) {
  const auto [path, leaf] = split_name(name);
  ParameterTable::of(module_at(path))[leaf] = tensor;
}

std::vector<std::pair<std::string, std::size_t>> ModuleTree::state(const torch::nn::Module& root) const {
  std::vector<std::pair<std::string, std::size_t>> all;
  const auto add = [&](const std::string& path) {
    const auto found = saved_.find(path);
    if (found != saved_.end()) all.insert(all.end(), found->second.begin(), found->second.end());
  };
  add("");
  for (const auto& item : root.named_modules("", /*include_self=*/false)) add(item.key());
  return all;
}

}  // namespace penstock::graph
