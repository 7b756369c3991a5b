// Replicated data parallelism in a plain libtorch training loop: each rank has the whole model and its part
// of the batch. Two lines are Penstock's: the world, and `DistributedDataParallel`. Ranks are threads here,
// so that it runs anywhere; with processes (`penstock run --ranks 4 -- ./ddp`), `ps::init()` gives the world
// instead. Expected output: the losses of the ranks together are those of the single process, step by step.
#include <penstock/penstock.h>

#include <torch/torch.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>

namespace ps = penstock;

namespace {

constexpr int kRanks = 4, kRows = 16, kLength = 12, kTokens = 32, kWidth = 32, kSteps = 30;

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

// Sequences that count upwards in steps of 1, 2 or 3, from anywhere.
torch::Tensor make_batch(int step) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(100 + step);
  const auto start = torch::randint(kTokens, {kRows, 1}, generator),
             stride = torch::randint(1, 4, {kRows, 1}, generator);
  return (start + stride * torch::arange(kLength + 1)).remainder(kTokens);
}

torch::Tensor loss_of(const torch::Tensor& logits, const torch::Tensor& rows) {
  return torch::nn::functional::cross_entropy(logits.flatten(0, 1), rows.slice(1, 1).flatten());
}

// What a single process does with the whole batch.
std::vector<double> train_alone() {
  torch::nn::Sequential gpt = make_gpt();
  torch::optim::AdamW optimizer(gpt->parameters(), torch::optim::AdamWOptions(3e-3));
  std::vector<double> losses;
  for (int step = 0; step < kSteps; ++step) {
    const torch::Tensor rows = make_batch(step);
    optimizer.zero_grad();
    const torch::Tensor loss = loss_of(gpt->forward(rows.slice(1, 0, -1)), rows);
    loss.backward();
    optimizer.step();
    losses.push_back(loss.item<double>());
  }
  return losses;
}

void train(ps::World& world, const std::vector<double>& alone) {
  torch::nn::Sequential gpt = make_gpt();
  ps::DistributedDataParallel ddp(gpt.ptr(), world.group());  // compares and shares the parameters
  torch::optim::AdamW optimizer(gpt->parameters(), torch::optim::AdamWOptions(3e-3));
  for (int step = 0; step < kSteps; ++step) {
    const torch::Tensor rows =
        make_batch(step).chunk(world.size())[static_cast<std::size_t>(world.rank().value)];
    optimizer.zero_grad();
    torch::Tensor loss = loss_of(ddp.forward(rows.slice(1, 0, -1)), rows);
    loss.backward();  // gradients are averaged over the ranks while it runs
    optimizer.step();

    loss = loss.detach();
    world.group().all_reduce(loss, ps::ReduceOp::Avg);
    const double single = alone[static_cast<std::size_t>(step)];
    if (std::abs(loss.item<double>() - single) > 1e-4) std::exit(1);
    if (world.rank().value == 0 && (step + 1) % 10 == 0)
      std::printf("step %d loss %.3f, alone %.3f\n", step + 1, loss.item<double>(), single);
  }
}

}  // namespace

int main() {
  at::set_num_threads(1);
  const std::vector<double> alone = train_alone();
  ps::run_thread_ranks(kRanks, [&](ps::World& world) { train(world, alone); });
}
