// A full backward pass without autograd's engine. For every node, the engine restores the thread's settings,
// takes locks and looks up the node in hash maps, which costs more than the node itself if tensors are small.
// All of this serves graphs that span threads and devices, or that call back into the engine.
#pragma once

#include <torch/csrc/autograd/function.h>

namespace penstock::runtime {

//! Runs the nodes that the roots lead to on this thread, in the order of the engine, so that sums of
//! gradients have the same rounding; frees their saved tensors. Does nothing and returns false if the graph
//! needs the engine: if it has nodes other than those of libtorch's operators on the CPU, hooks, or
//! distributed tensors; and if Python, a profiler, anomaly detection or another backward pass is active on
//! this thread.
bool run_backward_directly(const torch::autograd::edge_list& roots,
                           const torch::autograd::variable_list& grads);

}  // namespace penstock::runtime
