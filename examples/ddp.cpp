// Data parallelism in a plain libtorch training loop: each rank has the full model and processes its own rows
// of every batch. Start it with `penstock run --ranks 4 -- ./ddp`, torchrun, srun or mpirun; without a
// launcher it runs as a single rank. The argument `cuda` gives each rank a CUDA device: `… -- ./ddp cuda`.
// Expected output: the same decreasing losses for any number of ranks that divides the batch.
#include <penstock/penstock.h>

#include <torch/torch.h>

#include <cstdio>

namespace ps = penstock;

namespace {

constexpr int kRows = 16, kLength = 12, kTokens = 32, kWidth = 32, kSteps = 30;

struct BlockImpl : torch::nn::Module {
  BlockImpl() {
    using namespace torch::nn;
    norm1 = register_module("norm1", LayerNorm(LayerNormOptions({kWidth})));
    norm2 = register_module("norm2", LayerNorm(LayerNormOptions({kWidth})));
    qkv = register_module("qkv", Linear(LinearOptions(kWidth, 3 * kWidth).bias(false)));
    out = register_module("out", Linear(kWidth, kWidth));
    up = register_module("up", Linear(kWidth, 4 * kWidth));
    down = register_module("down", Linear(4 * kWidth, kWidth));
  }
  torch::Tensor forward(torch::Tensor x) {
    const auto heads = qkv(norm1(x)).view({x.size(0), x.size(1), 3, 4, kWidth / 4}).permute({2, 0, 3, 1, 4});
    const auto y =
        at::scaled_dot_product_attention(heads[0], heads[1], heads[2], {}, 0.0, /*is_causal=*/true);
    x = x + out(y.transpose(1, 2).reshape(x.sizes()));
    return x + down(torch::gelu(up(norm2(x))));
  }
  torch::nn::LayerNorm norm1{nullptr}, norm2{nullptr};
  torch::nn::Linear qkv{nullptr}, out{nullptr}, up{nullptr}, down{nullptr};
};
TORCH_MODULE(Block);

torch::nn::Sequential make_gpt() {
  torch::nn::Sequential gpt{torch::nn::Embedding(kTokens, kWidth), Block(), Block(),
                            torch::nn::Linear(kWidth, kTokens)};
  auto generator = at::make_generator<at::CPUGeneratorImpl>(1);
  const torch::NoGradGuard no_grad;
  for (auto& parameter : gpt->parameters()) parameter.normal_(0, 0.08, generator);
  return gpt;
}

// Sequences that count up by 1, 2 or 3 from a random start.
torch::Tensor make_batch(int step) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(100 + step);
  const auto start = torch::randint(kTokens, {kRows, 1}, generator),
             stride = torch::randint(1, 4, {kRows, 1}, generator);
  return (start + stride * torch::arange(kLength + 1)).remainder(kTokens);
}

// The rows of this rank, on its device. All ranks generate the same batch. To read rows from a dataset, use
// libtorch's `torch::data::samplers::DistributedRandomSampler(rows, world.size(), world.rank().value)`.
torch::Tensor share_of(const torch::Tensor& batch, const ps::World& world) {
  return batch.tensor_split(world.size())[static_cast<std::size_t>(world.rank().value)].to(world.device());
}

torch::Tensor loss_of(const torch::Tensor& logits, const torch::Tensor& targets) {
  return torch::nn::functional::cross_entropy(logits.flatten(0, 1), targets.flatten());
}

}  // namespace

int main(int argc, char** argv) {
  at::set_num_threads(1);
  const torch::Device device(argc > 1 ? argv[1] : "cpu");
  ps::World world = ps::init({.device = device});
  torch::nn::Sequential model = make_gpt();
  model->to(world.device());
  // Checks that all ranks have the same model and broadcasts the parameters of rank 0.
  ps::DistributedDataParallel ddp(model, world.group());
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(3e-3));

  for (int step = 1; step <= kSteps; ++step) {
    const torch::Tensor rows = share_of(make_batch(step), world);
    optimizer.zero_grad();
    torch::Tensor loss = loss_of(ddp.forward(rows.slice(1, 0, -1)), rows.slice(1, 1));
    loss.backward();  // averages gradients over the ranks while it runs
    optimizer.step();

    if (step % 10 != 0) continue;
    loss = loss.detach();
    world.group().all_reduce(loss, ps::ReduceOp::Avg);
    if (world.rank().value == 0) std::printf("step %d loss %.4f\n", step, loss.item<double>());
  }
}
