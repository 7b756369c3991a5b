// The functions of backward.h on the gradient edges of the outputs, so that the outputs themselves may
// already be freed.
#pragma once

#include "runtime/backward/backward.h"

#include <torch/csrc/autograd/function.h>

#include <functional>
#include <vector>

namespace penstock::runtime {

using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::variable_list;

std::vector<at::Tensor> backward_full(const edge_list& outputs, const variable_list& output_grads,
                                      const std::vector<at::Tensor>& inputs);
InputBackward backward_input(const edge_list& outputs, const variable_list& output_grads,
                             const std::vector<at::Tensor>& inputs);
InputBackward backward_input_with(const std::function<std::function<void()>()>& builder,
                                  const edge_list& outputs, const variable_list& output_grads,
                                  const std::vector<at::Tensor>& inputs);

}  // namespace penstock::runtime
