// A user's program that uses penstock::load only.
#include <penstock/graph/graph_text.h>
#include <penstock/load_module.h>

#include <ATen/ops/full.h>

#include <iostream>

int main() {
  const penstock::graph::Graph graph = penstock::graph::parse_graph(R"(graph {
  inputs ((%x : float32[1],), {})
  param %w : float32[1, 1] = "layer.weight"
  param %b : float32[1] = "layer.bias"
  %y : float32[1] = aten::linear(%x, %w, %b) @ layer
  return %y
})");
  penstock::ExportedModule model(graph, std::vector<at::Tensor>{at::full({1, 1}, 2.0), at::full({1}, 1.0)});
  std::cout << model->parameters().size() << " parameters, output " << model(at::full({1}, 1.0)).item<float>()
            << "\n";
}
