// A graph with its tensors: what a stage is made of, and a whole imported or captured model.
#pragma once

#include <penstock/graph/interpreter.h>
#include <penstock/graph/ir.h>
#include <penstock/value/microbatch.h>

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace penstock {

class GraphModule {
 public:
  //! One tensor for each slot, in their order. With a device, the tensors are moved there and operators that
  //! were recorded with a device of their own run on it.
  GraphModule(Graph graph, std::vector<at::Tensor> tensors, std::optional<c10::Device> device = std::nullopt);

  const Graph& graph() const { return graph_; }
  const std::vector<at::Tensor>& tensors() const { return tensors_; }
  const std::optional<c10::Device>& device() const { return device_; }

  //! Moves parameters and buffers in place: whoever holds one holds the moved tensor. Meta tensors get
  //! memory without values. From now on operators that were recorded with a device of their own run on this
  //! one.
  void to(c10::Device device);

  //! Runs the graph on arguments of the structure that it was made with. ShapeError names every input whose
  //! sizes or dtype the graph was not made for.
  c10::IValue forward(const Args& args, const Kwargs& kwargs = {}) const;

  //! The same on leaves, without any check.
  std::vector<c10::IValue> run(std::vector<c10::IValue> leaves) const;

  //! Each tensor once, by the first of its names.
  std::vector<std::pair<std::string, at::Tensor>> named_parameters() const;
  std::vector<std::pair<std::string, at::Tensor>> named_buffers() const;

  //! Off: flags of dropout and batch norm are false. On: as they were recorded.
  void train(bool on = true);
  bool is_training() const { return training_; }

 private:
  const Interpreter& interpreter() const { return training_ ? train_ : *eval_; }

  Graph graph_;
  std::vector<at::Tensor> tensors_;
  std::optional<c10::Device> device_;
  Interpreter train_;
  std::optional<Interpreter> eval_;
  bool training_ = true;
};

//! ShapeError with every input leaf that does not fit: another dtype, another fixed size, two values for one
//! symbol, or a symbol out of its range. `size_hint` replaces the hint for fixed sizes that differ.
void check_inputs(const Graph& graph, const std::vector<c10::IValue>& leaves,
                  const std::string& size_hint = {});

//! The leaves of the arguments, in the order of `graph.inputs`; UsageError if their structure is another one.
std::vector<c10::IValue> flatten_inputs(const Graph& graph, const Args& args, const Kwargs& kwargs);

}  // namespace penstock
