// A user's program that uses penstock::load only: loads an exported model and computes its loss on the first
// batch of examples/exported/make_model.py.
#include <penstock/load_module.h>

#include <torch/types.h>

#include <cstdio>

int main() {
  penstock::ExportedModule model = penstock::load_module(MODEL);
  const torch::Tensor rows = torch::arange(8).unsqueeze(1);
  const torch::Tensor text = (rows * 5 + 7 + (rows.remainder(3) + 1) * torch::arange(9)).remainder(17);
  const auto outputs = model->forward_named(text.slice(1, 0, 8).contiguous(), text.slice(1, 1).contiguous());
  std::printf("%zu parameters, loss %.3f\n", model->parameters().size(),
              outputs.at("output.loss").item<double>());
}
