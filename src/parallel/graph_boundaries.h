// Changing the tensors that enter and leave a module of a graph.
#pragma once

#include <penstock/graph/ir.h>

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>
#include <string>

namespace penstock {

struct Boundary {
  //! What operators of the module read in place of a tensor from outside; null: nothing changes. Tensors
  //! count in the order in which they are first read; parameters, buffers and constants are left out.
  std::function<at::Tensor(const at::Tensor& tensor, std::size_t index)> enter;
  //! What others read in place of a tensor that the module made.
  //! They count in the order in which others first read them.
  std::function<at::Tensor(const at::Tensor& tensor, std::size_t index)> leave;
  //! How many tensors `enter` is for; all, if it does not say.
  std::optional<std::size_t> entering{};
  //! Told how many tensors enter and leave a call; may throw.
  std::function<void(std::size_t entering)> check_entering{};
  std::function<void(std::size_t leaving)> check_leaving{};
};

//! The graph with an operator at each boundary of the module. A stretch of neighbouring operators of the
//! module is a call of it; the empty path is the whole graph. UsageError where the module writes into a
//! tensor that it gets, or has no operators.
Graph with_boundary(Graph graph, const std::string& module, const Boundary& boundary);

}  // namespace penstock
