// Runs stage graphs one after the other, detached from each other as if on different ranks, and their
// backward passes in reverse order.
#pragma once

#include <penstock/graph/graph_module.h>
#include <penstock/graph/split.h>

#include <torch/csrc/autograd/autograd.h>
#include <torch/types.h>

#include <map>

namespace penstock::test {

class StageRunner {
 public:
  //! Each stage gets copies of its tensors, by their first name.
  StageRunner(const graph::SplitGraph& split, const std::map<std::string, at::Tensor>& tensors)
      : split_(split) {
    for (const graph::StageGraph& stage : split.stages) {
      std::vector<at::Tensor> held;
      for (const graph::Slot& slot : stage.graph.slots) {
        held.push_back(tensors.at(slot.names[0]).detach().clone().set_requires_grad(slot.requires_grad));
      }
      modules.emplace_back(stage.graph, std::move(held));
    }
  }

  std::vector<c10::IValue> forward(const std::vector<c10::IValue>& user) {
    for (std::size_t s = 0; s < modules.size(); ++s) {
      inputs_.emplace_back();
      for (const graph::InputSource& source : split_.stages[s].sources) {
        if (const auto* from = std::get_if<graph::FromUser>(&source)) {
          inputs_[s].push_back(user[static_cast<std::size_t>(from->input)]);
          continue;
        }
        const auto& [stage, output] = std::get<graph::FromStage>(source);
        const at::Tensor sent = outputs_[stage.index()][static_cast<std::size_t>(output)].toTensor();
        inputs_[s].emplace_back(sent.detach().clone().set_requires_grad(sent.requires_grad()));
      }
      outputs_.push_back(modules[s].run(inputs_[s]));
    }
    return outputs_.back();
  }

  //! One gradient per output of the model; undefined if it has none.
  void backward(const std::vector<at::Tensor>& seeds) {
    std::vector<std::vector<at::Tensor>> grads;
    for (const auto& outputs : outputs_) grads.emplace_back(outputs.size());
    grads.back() = seeds;
    for (std::size_t s = modules.size(); s-- > 0;) {
      std::vector<at::Tensor> roots, root_grads;
      for (std::size_t i = 0; i < outputs_[s].size(); ++i) {
        if (!grads[s][i].defined() || !outputs_[s][i].toTensor().requires_grad()) continue;
        roots.push_back(outputs_[s][i].toTensor());
        root_grads.push_back(grads[s][i].contiguous());
      }
      if (!roots.empty()) torch::autograd::backward(roots, root_grads);
      for (std::size_t i = 0; i < inputs_[s].size(); ++i) {
        const auto* from = std::get_if<graph::FromStage>(&split_.stages[s].sources[i]);
        if (!from || !inputs_[s][i].toTensor().grad().defined()) continue;
        at::Tensor& sum = grads[from->stage.index()][static_cast<std::size_t>(from->output)];
        const at::Tensor& grad = inputs_[s][i].toTensor().grad();
        sum = sum.defined() ? sum + grad : grad;
      }
    }
  }

  //! Summed over the stages that hold the parameter, by its first name.
  std::map<std::string, at::Tensor> gradients() const {
    std::map<std::string, at::Tensor> sums;
    for (std::size_t s = modules.size(); s-- > 0;) {
      for (const auto& [name, tensor] : modules[s].named_parameters()) {
        if (!tensor.grad().defined()) continue;
        at::Tensor& sum = sums[name];
        sum = sum.defined() ? sum + tensor.grad() : tensor.grad();
      }
    }
    return sums;
  }

  std::vector<graph::GraphModule> modules;

 private:
  const graph::SplitGraph& split_;
  std::vector<std::vector<c10::IValue>> inputs_, outputs_;
};

}  // namespace penstock::test
