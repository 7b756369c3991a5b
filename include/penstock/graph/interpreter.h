// Runs a graph: the nodes become a list of steps once, and each run is one pass over it. Autograd records as
// it would for the eager model; values are freed where they are read last.
#pragma once

#include <penstock/graph/ir.h>

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace penstock {

class Interpreter {
 public:
  //! With a device, operators that were exported with a device of their own run on that one.
  explicit Interpreter(const Graph& graph, std::optional<c10::Device> device = std::nullopt);
  ~Interpreter();
  Interpreter(Interpreter&&) noexcept;
  Interpreter& operator=(Interpreter&&) noexcept;

  //! One value for each input of the graph, one tensor for each slot; gives one value for each output. May be
  //! called by several threads at once. A failing operator is an Error that names it and its module.
  std::vector<c10::IValue> run(std::vector<c10::IValue> inputs, std::span<const at::Tensor> slots) const;

  //! The same, calling `after(node)` when a node has run, for profiles.
  std::vector<c10::IValue> run(std::vector<c10::IValue> inputs, std::span<const at::Tensor> slots,
                               const std::function<void(std::size_t node)>& after) const;

 private:
  struct Program;
  std::unique_ptr<const Program> program_;
};

}  // namespace penstock
