// An image classifier in a plain libtorch training loop with data parallelism: a small convolutional network
// with batch norm. Start it with `penstock run --ranks 2 -- ./images`; without a launcher it runs as a single
// rank. The argument `cuda` selects CUDA devices. Expected output: the same decreasing losses for 1, 2 and 4
// ranks, and an accuracy above 90%.
#include <penstock/penstock.h>

#include <torch/torch.h>

#include <cstdio>
#include <vector>

namespace ps = penstock;

namespace {

constexpr int kRows = 32, kGroup = 8, kSize = 12, kClasses = 4, kChannels = 8, kSteps = 60;

// Batch norm uses the statistics of the rows that it sees, so that its result would depend on the number of
// ranks. This network normalizes fixed groups of rows; each rank has whole groups.
struct ConvNetImpl : torch::nn::Module {
  ConvNetImpl() {
    using namespace torch::nn;
    conv1 = register_module("conv1", Conv2d(Conv2dOptions(1, kChannels, 3).padding(1).bias(false)));
    conv2 = register_module("conv2", Conv2d(Conv2dOptions(kChannels, kChannels, 3).stride(2).bias(false)));
    norm1 = register_module("norm1", BatchNorm2d(kChannels));
    norm2 = register_module("norm2", BatchNorm2d(kChannels));
    head = register_module("head", Linear(kChannels, kClasses));
  }
  torch::Tensor forward(const torch::Tensor& images) {
    std::vector<torch::Tensor> logits;
    for (const torch::Tensor& group : images.split(kGroup)) {
      const torch::Tensor features = torch::relu(norm2(conv2(torch::relu(norm1(conv1(group))))));
      logits.push_back(head(features.amax({2, 3})));
    }
    return torch::cat(logits);
  }
  torch::nn::Conv2d conv1{nullptr}, conv2{nullptr};
  torch::nn::BatchNorm2d norm1{nullptr}, norm2{nullptr};
  torch::nn::Linear head{nullptr};
};
TORCH_MODULE(ConvNet);

ConvNet make_model() {
  ConvNet model;
  auto generator = at::make_generator<at::CPUGeneratorImpl>(1);
  const torch::NoGradGuard no_grad;
  for (auto& parameter : model->parameters())
    if (parameter.dim() > 1) parameter.normal_(0, 0.3, generator);
  model->head->bias.zero_();
  return model;
}

struct Images {
  torch::Tensor pixels, labels;
};

// Noisy waves in four directions: horizontal, vertical and the two diagonals.
Images make_batch(int step) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(100 + step);
  const auto labels = torch::randint(kClasses, {kRows}, generator);
  const auto phase = torch::rand({kRows, 1, 1}, generator) * 6.28;
  const auto x = torch::arange(kSize).view({1, 1, kSize}), y = torch::arange(kSize).view({1, kSize, 1});
  const auto along_x = torch::tensor({1.0, 0.0, 0.7, 0.7}).index({labels}).view({kRows, 1, 1});
  const auto along_y = torch::tensor({0.0, 1.0, 0.7, -0.7}).index({labels}).view({kRows, 1, 1});
  const auto waves = torch::sin(1.5 * (x * along_x + y * along_y) + phase);
  return {(waves + 0.3 * torch::randn(waves.sizes(), generator)).unsqueeze(1), labels};
}

}  // namespace

int main(int argc, char** argv) {
  at::set_num_threads(1);
  ps::World world = ps::init({.device = torch::Device(argc > 1 ? argv[1] : "cpu")});
  if (kRows % (kGroup * world.size()) != 0) {
    std::fprintf(stderr, "the number of ranks must divide %d\n", kRows / kGroup);
    return 1;
  }
  const auto share_of = [&](const torch::Tensor& batch) {  // the rows of this rank
    return batch.tensor_split(world.size())[static_cast<std::size_t>(world.rank().value)].to(world.device());
  };
  ConvNet model = make_model();
  model->to(world.device());
  ps::DistributedDataParallel ddp(model, world.group());
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.03).momentum(0.9));

  for (int step = 1; step <= kSteps; ++step) {
    const Images batch = make_batch(step);
    optimizer.zero_grad();
    torch::Tensor loss =
        torch::nn::functional::cross_entropy(ddp.forward(share_of(batch.pixels)), share_of(batch.labels));
    loss.backward();  // averages gradients over the ranks while it runs
    optimizer.step();

    if (step % 20 != 0) continue;
    loss = loss.detach();
    world.group().all_reduce(loss, ps::ReduceOp::Avg);
    if (world.rank().value == 0) std::printf("step %d loss %.5f\n", step, loss.item<double>());
  }

  // Evaluation uses running statistics, which each rank has updated with its own groups: those of rank 0
  // count.
  ddp.replica().broadcast_buffers();
  model->eval();
  const torch::NoGradGuard no_grad;
  const Images test = make_batch(0);
  const double accuracy = model(test.pixels.to(world.device()))
                              .argmax(1)
                              .cpu()
                              .eq(test.labels)
                              .to(torch::kDouble)
                              .mean()
                              .item<double>();
  if (world.rank().value == 0) std::printf("accuracy %.0f%%\n", 100 * accuracy);
}
