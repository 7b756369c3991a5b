// Runs a graph. The constructor compiles the nodes into a list of steps; each run executes the list once.
// Autograd records as for the eager model; values are freed after their last use.
#pragma once

#include <penstock/graph/ir.h>

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace penstock::graph {

class Interpreter {
 public:
  //! A device overrides the device arguments of recorded operators.
  explicit Interpreter(const Graph& graph, std::optional<c10::Device> device = std::nullopt);
  ~Interpreter();
  Interpreter(Interpreter&&) noexcept;
  Interpreter& operator=(Interpreter&&) noexcept;

  //! Takes one value per graph input and one tensor per slot; returns one value per output. Thread-safe.
  //! Throws an Error naming operator and module if an operator fails.
  std::vector<c10::IValue> run(std::vector<c10::IValue> inputs, std::span<const at::Tensor> slots) const;

  //! Also calls `after(node)` after each node, for profiling.
  std::vector<c10::IValue> run(std::vector<c10::IValue> inputs, std::span<const at::Tensor> slots,
                               const std::function<void(std::size_t node)>& after) const;

 private:
  struct Program;
  std::unique_ptr<const Program> program_;
};

}  // namespace penstock::graph
