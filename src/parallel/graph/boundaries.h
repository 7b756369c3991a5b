// Hooks on the tensors that enter and leave a module of a graph.
#pragma once

#include <penstock/graph/ir.h>

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>
#include <string>

namespace penstock::parallel {

struct Boundary {
  //! Replaces a tensor from outside that operators of the module read; null: no change. Tensors are numbered
  //! in the order in which they are first read, without parameters, buffers and constants.
  std::function<at::Tensor(const at::Tensor& tensor, std::size_t index)> enter;
  //! Replaces a tensor of the module that other operators read. Tensors are numbered in the order in which
  //! others first read them.
  std::function<at::Tensor(const at::Tensor& tensor, std::size_t index)> leave;
  //! The number of tensors that `enter` handles; empty: all.
  std::optional<std::size_t> entering{};
  //! Called with the number of tensors that enter and leave a call; may throw.
  std::function<void(std::size_t entering)> check_entering{};
  std::function<void(std::size_t leaving)> check_leaving{};
};

//! Returns the graph with an operator at each boundary of the module. Consecutive operators of the module are
//! one call of it; the empty path is the entire graph. Throws UsageError if the module writes to an input
//! that `enter` replaces, or has no operators.
graph::Graph with_boundary(graph::Graph graph, const std::string& module, const Boundary& boundary);

}  // namespace penstock::parallel
