// Fine-tunes a classifier exported by Python's `torch.export`, without Python: the successor of a program
// that trains a torch::jit::Module. Usage: example_fine_tune MODEL.pt2 DATA.safetensors [OUT.pt [DEVICE]].
// The data file has a tensor for each argument of the model's forward, and the tensor `target` with the
// classes; examples/exported/make_classifiers.py writes such files. Links only penstock::load.
#include <penstock/checkpoint/safetensors.h>
#include <penstock/load_module.h>

#include <torch/torch.h>

#include <cstdio>

namespace ps = penstock;

namespace {

constexpr int kEpochs = 20, kRows = 16;

torch::Tensor logits_of(const std::map<std::string, torch::Tensor>& outputs) {
  return outputs.contains("output.logits") ? outputs.at("output.logits") : outputs.at("output");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3)
    return std::fprintf(stderr, "usage: %s MODEL.pt2 DATA.safetensors [OUT.pt [DEVICE]]\n", argv[0]), 2;
  const torch::Device device(argc > 4 ? argv[4] : "cpu");
  ps::ExportedModule model = ps::load_module(argv[1]);
  model->to(device);
  const std::map<std::string, torch::Tensor> data = ps::checkpoint::load_safetensors(argv[2]);
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(3e-3));
  torch::manual_seed(1);
  for (int epoch = 1; epoch <= kEpochs; ++epoch) {
    double sum = 0;
    for (const torch::Tensor& rows : torch::randperm(data.at("target").size(0)).split(kRows)) {
      ps::Args args;
      for (const std::string& name : model->input_names())
        args.push_back(data.at(name).index_select(0, rows).to(device));
      optimizer.zero_grad();
      const torch::Tensor logits = logits_of(model->forward_named(args)).flatten(0, -2);
      const torch::Tensor target = data.at("target").index_select(0, rows).flatten().to(device);
      const torch::Tensor loss = torch::nn::functional::cross_entropy(logits, target);
      loss.backward();
      optimizer.step();
      sum += loss.item<double>() * static_cast<double>(rows.size(0));
    }
    std::printf("epoch %d loss %.4f\n", epoch, sum / static_cast<double>(data.at("target").size(0)));
  }
  if (argc > 3) torch::save(model, argv[3]);
}
