// Measures node times with the callback that the interpreter calls after each node.
#include "graph/run/node_profile.h"

#include "base/text.h"
#include "graph/passes/graph_costs.h"
#include "graph/run/interpreter.h"

#include <penstock/base/error.h>

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <chrono>
#include <numeric>

namespace penstock::graph {
namespace {

//! The devices, other than the CPU, of the module and its inputs. A node takes as long as its kernels there.
std::vector<c10::Device> devices_of(const GraphModule& module, const std::vector<c10::IValue>& leaves) {
  std::vector<c10::Device> devices;
  const auto add = [&](const at::Tensor& tensor) {
    if (!tensor.defined() || tensor.is_cpu() || tensor.is_meta()) return;
    if (std::find(devices.begin(), devices.end(), tensor.device()) == devices.end())
      devices.push_back(tensor.device());
  };
  for (const at::Tensor& tensor : module.tensors()) add(tensor);
  for (const c10::IValue& leaf : leaves) {
    if (leaf.isTensor()) add(leaf.toTensor());
  }
  return devices;
}

void wait_for_devices(const std::vector<c10::Device>& devices) {
  for (const c10::Device device : devices) {
    const c10::impl::VirtualGuardImpl guard(device.type());
    guard.synchronizeStream(guard.getStream(device));
  }
}

}  // namespace

std::vector<double> profile_nodes(const GraphModule& module, const std::vector<c10::IValue>& leaves,
                                  int runs) {
  const c10::AutoGradMode no_grad(false);
  std::vector<std::pair<at::Tensor, at::Tensor>> saved;
  for (const auto& [name, buffer] : module.named_buffers()) saved.emplace_back(buffer, buffer.clone());
  using Clock = std::chrono::steady_clock;
  std::vector<double> least(module.graph().nodes.size(), 0);
  const Interpreter interpreter(module.graph(), module.device());
  const std::vector<c10::Device> devices = devices_of(module, leaves);
  for (int run = 0; run <= runs; ++run) {
    wait_for_devices(devices);
    Clock::time_point before = Clock::now();
    interpreter.run(leaves, module.tensors(), [&](std::size_t node) {
      wait_for_devices(devices);
      const double seconds = std::chrono::duration<double>(Clock::now() - before).count();
      if (run == 1 || (run > 1 && seconds < least[node])) least[node] = seconds;
      before = Clock::now();
    });
  }
  for (auto& [buffer, copy] : saved) buffer.copy_(copy);
  return least;
}

std::string profile_text(const Graph& graph, std::span<const double> seconds, std::size_t most) {
  if (seconds.size() != graph.nodes.size()) throw UsageError("`seconds` must have one entry per node");
  std::vector<std::size_t> order(seconds.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return seconds[a] > seconds[b]; });
  const double total = std::accumulate(seconds.begin(), seconds.end(), 0.0);
  std::string text = "      time   share   GFLOP/s  operator\n";
  for (std::size_t i = 0; i < std::min(most, order.size()); ++i) {
    const Node& node = graph.nodes[order[i]];
    const double time = seconds[order[i]];
    if (time <= 0) break;
    const std::string numbers = formatted("%10s  %5.1f%%  %8.2f  ", format_seconds(time).c_str(),
                                          100 * time / total, 1e-9 * node_flops(graph, node) / time);
    std::string type;
    for_each_result(node, [&](ValueId id) {
      const auto& meta = graph.value(id).meta;
      if (type.empty() && meta) type = " " + to_string(*meta);
    });
    text += numbers + node.name() + type + (node.module.empty() ? "" : "  @ " + node.module) + "\n";
  }
  text += str_cat("all ", graph.nodes.size(), " nodes: ", format_seconds(total), "\n");
  return text;
}

}  // namespace penstock::graph
