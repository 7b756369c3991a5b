// Sharded data parallelism (ZeRO-3, FSDP) in a plain libtorch training loop: each of 4 ranks holds a quarter
// of the parameters, gradients and optimizer state. The parameters of a block are gathered only while the
// block computes. The model calls its blocks as `ps::call(block, x)`, which sharding hooks into. Ranks are
// threads; with processes, call `ps::init()` to get the world. The argument `cuda` gives each rank a CUDA
// device. Expected output: in every step, the mean loss of the ranks equals the loss of a single process.
#include <penstock/penstock.h>

#include <torch/torch.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>

namespace ps = penstock;

namespace {

constexpr int kRanks = 4, kRows = 16, kLength = 12, kTokens = 32, kWidth = 32, kLayers = 3, kSteps = 30;

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

struct GptImpl : torch::nn::Module {
  GptImpl() {
    token = register_module("token", torch::nn::Embedding(kTokens, kWidth));
    for (int i = 0; i < kLayers; ++i)
      blocks.emplace_back(register_module("block" + std::to_string(i), Block()));
    head = register_module("head", torch::nn::Linear(kWidth, kTokens));
    auto generator = at::make_generator<at::CPUGeneratorImpl>(1);
    const torch::NoGradGuard no_grad;
    for (auto& parameter : parameters()) parameter.normal_(0, 0.08, generator);
  }
  torch::Tensor forward(const torch::Tensor& tokens) {
    torch::Tensor x = token(tokens);
    for (const Block& block : blocks) x = ps::call(block, x);
    return head(x);
  }
  torch::nn::Embedding token{nullptr};
  std::vector<Block> blocks;
  torch::nn::Linear head{nullptr};
};
TORCH_MODULE(Gpt);

// Sequences that count up by 1, 2 or 3 from a random start.
torch::Tensor make_batch(int step) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(100 + step);
  const auto start = torch::randint(kTokens, {kRows, 1}, generator),
             stride = torch::randint(1, 4, {kRows, 1}, generator);
  return (start + stride * torch::arange(kLength + 1)).remainder(kTokens);
}

// One training loop for both runs. They differ only in the optimizer's parameters and in the clipping
// function.
std::vector<double> train(Gpt gpt, torch::optim::Optimizer& optimizer, int rank, int ranks,
                          torch::Device device, const std::function<void()>& clip) {
  std::vector<double> losses;
  for (int step = 0; step < kSteps; ++step) {
    const torch::Tensor rows = make_batch(step).chunk(ranks)[static_cast<std::size_t>(rank)].to(device);
    optimizer.zero_grad();
    const torch::Tensor logits = ps::call(gpt, rows.slice(1, 0, -1));
    const torch::Tensor loss =
        torch::nn::functional::cross_entropy(logits.flatten(0, 1), rows.slice(1, 1).flatten());
    loss.backward();  // gathers parameters, reduces gradients and frees parameters, unit by unit
    clip();
    optimizer.step();
    losses.push_back(loss.item<double>());
  }
  return losses;
}

void train_sharded(ps::World& world, const std::vector<double>& alone) {
  Gpt gpt;
  gpt->to(world.device());
  std::vector<std::shared_ptr<torch::nn::Module>> units;
  for (const Block& block : gpt->blocks) units.push_back(block.ptr());
  ps::Sharded sharded = ps::fully_shard(gpt, world.group(), {}, units);
  torch::optim::AdamW optimizer(sharded.parameters(), torch::optim::AdamWOptions(3e-3));
  std::int64_t kept = 0;
  for (const torch::Tensor& shard : sharded.parameters()) kept += shard.numel();
  if (world.rank().value == 0) std::printf("rank 0 keeps %ld parameters\n", static_cast<long>(kept));

  const std::vector<double> losses = train(gpt, optimizer, world.rank().value, world.size(), world.device(),
                                           [&] { sharded.clip_grad_norm(1.0); });
  const torch::Tensor mean = torch::tensor(losses, torch::kDouble);
  world.group().all_reduce(mean, ps::ReduceOp::Avg);
  for (int step = 0; step < kSteps; ++step) {
    const double loss = mean[step].item<double>(), single = alone[static_cast<std::size_t>(step)];
    if (std::abs(loss - single) > 1e-4) std::exit(1);
    if (world.rank().value == 0 && (step + 1) % 10 == 0)
      std::printf("step %d loss %.3f, single process %.3f\n", step + 1, loss, single);
  }
}

}  // namespace

int main(int argc, char** argv) {
  at::set_num_threads(1);
  Gpt gpt;
  std::int64_t count = 0;
  for (const torch::Tensor& parameter : gpt->parameters()) count += parameter.numel();
  std::printf("single process: %ld parameters\n", static_cast<long>(count));
  torch::optim::AdamW optimizer(gpt->parameters(), torch::optim::AdamWOptions(3e-3));
  const std::vector<double> alone = train(gpt, optimizer, 0, 1, torch::kCPU,
                                          [&] { torch::nn::utils::clip_grad_norm_(gpt->parameters(), 1.0); });
  ps::run_thread_ranks(kRanks, [&](ps::World& world) { train_sharded(world, alone); },
                       {.device = torch::Device(argc > 1 ? argv[1] : "cpu")});
}
