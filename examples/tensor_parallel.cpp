// Tensor parallelism (Megatron's layout): a plan of module paths shards the linear layers of a GPT over the
// ranks. The training loop does not change. Ranks are threads; with processes, call `ps::init()` to get the
// world. The argument `cuda` gives each rank a CUDA device. Expected output: in every step, the loss equals
// that of a single process.
#include <penstock/penstock.h>

#include <torch/torch.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>

namespace ps = penstock;

namespace {

constexpr int kRanks = 4, kRows = 16, kLength = 12, kTokens = 32, kWidth = 32, kHeads = 4, kLayers = 2,
              kSteps = 30;

struct BlockImpl : torch::nn::Module {
  BlockImpl() {
    using namespace torch::nn;
    norm1 = register_module("norm1", LayerNorm(LayerNormOptions({kWidth})));
    norm2 = register_module("norm2", LayerNorm(LayerNormOptions({kWidth})));
    query = register_module("query", Linear(LinearOptions(kWidth, kWidth).bias(false)));
    key = register_module("key", Linear(LinearOptions(kWidth, kWidth).bias(false)));
    value = register_module("value", Linear(LinearOptions(kWidth, kWidth).bias(false)));
    out = register_module("out", Linear(kWidth, kWidth));
    up = register_module("up", Linear(kWidth, 4 * kWidth));
    down = register_module("down", Linear(4 * kWidth, kWidth));
  }
  torch::Tensor forward(torch::Tensor x) {
    const torch::Tensor h = norm1(x);
    const auto heads = [&](torch::nn::Linear& linear) {
      return linear(h).view({x.size(0), x.size(1), kHeads, kWidth / kHeads}).transpose(1, 2);
    };
    const auto y = at::scaled_dot_product_attention(heads(query), heads(key), heads(value), {}, 0.0, true);
    x = x + out(y.transpose(1, 2).reshape(x.sizes()));
    return x + down(torch::gelu(up(norm2(x))));
  }
  torch::nn::LayerNorm norm1{nullptr}, norm2{nullptr};
  torch::nn::Linear query{nullptr}, key{nullptr}, value{nullptr}, out{nullptr}, up{nullptr}, down{nullptr};
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
    for (Block& block : blocks) x = block(x);
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

// The loop does not depend on ranks: every rank processes the full batch.
std::vector<double> train(Gpt gpt, torch::Device device) {
  torch::optim::AdamW optimizer(gpt->parameters(), torch::optim::AdamWOptions(3e-3));
  std::vector<double> losses;
  for (int step = 0; step < kSteps; ++step) {
    const torch::Tensor rows = make_batch(step).to(device);
    optimizer.zero_grad();
    const torch::Tensor logits = gpt(rows.slice(1, 0, -1));
    const torch::Tensor loss =
        torch::nn::functional::cross_entropy(logits.flatten(0, 1), rows.slice(1, 1).flatten());
    loss.backward();
    optimizer.step();
    losses.push_back(loss.item<double>());
  }
  return losses;
}

void train_cut(ps::World& world, const std::vector<double>& alone) {
  const ps::DeviceMesh mesh(world.group(), {world.size()}, {"tp"});
  Gpt gpt;
  gpt->to(world.device());
  ps::parallelize_module(*gpt, mesh,
                         {{"token", ps::RowwiseParallel()},  // shards the vocabulary
                          {"block*.query", ps::ColwiseParallel()},
                          {"block*.key", ps::ColwiseParallel()},
                          {"block*.value", ps::ColwiseParallel()},
                          {"block*.out", ps::RowwiseParallel()},
                          {"block*.up", ps::ColwiseParallel()},
                          {"block*.down", ps::RowwiseParallel()},
                          {"head", ps::ColwiseParallel()}});  // shards the classes of the loss
  const std::vector<double> losses = train(gpt, world.device());
  for (int step = 0; step < kSteps; ++step) {
    const double loss = losses[static_cast<std::size_t>(step)],
                 single = alone[static_cast<std::size_t>(step)];
    if (std::abs(loss - single) > 1e-4) std::exit(1);
    if (world.rank().value == 0 && (step + 1) % 10 == 0)
      std::printf("step %d loss %.3f, single process %.3f\n", step + 1, loss, single);
  }
}

}  // namespace

int main(int argc, char** argv) {
  at::set_num_threads(1);
  const std::vector<double> alone = train(Gpt(), torch::kCPU);
  ps::run_thread_ranks(kRanks, [&](ps::World& world) { train_cut(world, alone); },
                       {.device = torch::Device(argc > 1 ? argv[1] : "cpu")});
}
