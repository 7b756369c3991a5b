// The submodules of an exported model: torch::nn modules that hold its parameters and buffers under the names
// that they have in Python, and the training mode of its operators.
#pragma once

#include <penstock/graph/ir.h>

#include <torch/nn/module.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

namespace penstock::graph {

class ModuleTree {
 public:
  //! Adds the submodules to `root`, which must outlive the tree, and registers the tensors of the slots, each
  //! under its first name. Operators without parameters have submodules too.
  ModuleTree(torch::nn::Module& root, const Graph& graph, const std::vector<at::Tensor>& tensors);

  //! The training mode of each module; parents come before their children.
  std::vector<bool> modes() const;
  void set_modes(const std::vector<bool>& modes);
  //! The index of a module in `modes`.
  std::size_t index_of(const std::string& path) const { return indices_.at(path); }

  //! Replaces a registered parameter.
  void replace_parameter(const std::string& name, const at::Tensor& tensor);

  //! The slots of Python's `state_dict()` in its order: parameters and then buffers of each module, under all
  //! of their names.
  std::vector<std::pair<std::string, std::size_t>> state(const torch::nn::Module& root) const;

 private:
  torch::nn::Module& module_at(const std::string& path);
  void add_names(const Slot& slot, std::size_t index);

  std::vector<torch::nn::Module*> modules_;
  std::vector<std::shared_ptr<torch::nn::Module>> owned_;  // even if the user unregisters one
  std::map<std::string, std::size_t> indices_;             // by path
  std::map<std::string, std::vector<std::pair<std::string, std::size_t>>> saved_;  // by path of the module
};

}  // namespace penstock::graph
