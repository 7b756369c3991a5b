// The cost of the runtime itself: a pipeline of one rank a process over Gloo, whose stages do next to
// nothing, or a small GPT. `runtime_bench` starts its ranks itself; the reference does the same in
// reference.py.
#include <penstock/base/json.h>
#include <penstock/penstock.h>

#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <iostream>

namespace ps = penstock;

namespace {

using Clock = std::chrono::steady_clock;

struct Block : torch::nn::Module {
  Block(std::int64_t width, std::int64_t head_count) : heads(head_count) {
    using namespace torch::nn;
    norm1 = register_module("norm1", LayerNorm(LayerNormOptions({width})));
    norm2 = register_module("norm2", LayerNorm(LayerNormOptions({width})));
    qkv = register_module("qkv", Linear(width, 3 * width));
    proj = register_module("proj", Linear(width, width));
    up = register_module("up", Linear(width, 4 * width));
    down = register_module("down", Linear(4 * width, width));
  }
  at::Tensor forward(at::Tensor x) {
    const auto b = x.size(0), t = x.size(1), d = x.size(2);
    const auto parts = qkv(norm1(x)).view({b, t, 3, heads, d / heads}).permute({2, 0, 3, 1, 4}).unbind(0);
    const at::Tensor y = at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.0, true);
    x = x + proj(y.transpose(1, 2).reshape({b, t, d}));
    return x + down(at::gelu(up(norm2(x))));
  }
  std::int64_t heads;
  torch::nn::LayerNorm norm1{nullptr}, norm2{nullptr};
  torch::nn::Linear qkv{nullptr}, proj{nullptr}, up{nullptr}, down{nullptr};
};

struct Work {
  std::shared_ptr<ps::StageModule> module;
  ps::StepInput input;
  ps::LossFunction loss;
};

Work linear(int) {
  const int rows = 256;
  return {ps::make_stage_module(torch::nn::Linear(16, 16)),
          {{torch::randn({rows, 16})}, {}, torch::randn({rows, 16})},
          ps::tensor_loss([](const at::Tensor& y, const at::Tensor& t) { return torch::mse_loss(y, t); })};
}

Work gpt(int rank) {
  constexpr std::int64_t width = 256, tokens = 512, length = 128, batch = 16;
  torch::nn::Sequential stage;
  if (rank == 0) stage->push_back(torch::nn::Embedding(tokens, width));
  stage->push_back(std::make_shared<Block>(width, 4));
  stage->push_back(std::make_shared<Block>(width, 4));
  if (rank == 1) stage->push_back(torch::nn::Linear(torch::nn::LinearOptions(width, tokens).bias(false)));
  return {ps::make_stage_module(stage),
          {{torch::randint(tokens, {batch, length})}, {}, torch::randint(tokens, {batch, length})},
          ps::tensor_loss([](const at::Tensor& y, const at::Tensor& t) {
            return at::cross_entropy_loss(y.flatten(0, 1), t.flatten());
          })};
}

// The fastest and the median of the steps, in seconds.
int run_rank(const std::string& model, const std::string& schedule, int microbatches, int steps) {
  at::set_num_threads(1);
  torch::manual_seed(0);
  ps::World world = ps::init();
  Work work = model == "gpt" ? gpt(world.rank().value) : linear(world.rank().value);
  const ps::PipelineStage stage(work.module, world.rank().value, world.size(), at::kCPU, world.group());
  ps::PipelineOptions options;
  options.loss = work.loss;
  options.return_outputs = false;
  ps::PipelineSchedule pipeline({stage}, schedule, microbatches, options);
  std::vector<double> seconds;
  double busy = 0;
  for (int step = 0; step < steps + 2; ++step) {
    world.group().barrier();
    const auto start = Clock::now();
    const ps::StepResult result = pipeline.step(work.input);
    world.group().barrier();
    if (step < 2) continue;
    seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count());
    double own = 0;
    for (const ps::TimedAction& timed : result.timeline.ranks[static_cast<std::size_t>(world.rank().value)]) {
      if (timed.action.is_compute()) own += timed.end - timed.start;
    }
    busy += own / steps;
  }
  std::sort(seconds.begin(), seconds.end());
  if (world.rank().value == 0) {
    std::cout << "{\"model\": \"" << model << "\", \"schedule\": \"" << schedule
              << "\", \"microbatches\": " << microbatches << ", \"best_s\": " << seconds.front()
              << ", \"median_s\": " << seconds[seconds.size() / 2] << ", \"compute_s\": " << busy << "}"
              << std::endl;
  }
  return 0;
}

}  // namespace

// runtime_bench MODEL SCHEDULE MICROBATCHES STEPS
int main(int argc, char** argv) {
  if (argc != 5) {
    std::cerr << "usage: runtime_bench linear|gpt SCHEDULE MICROBATCHES STEPS\n";
    return 2;
  }
  if (std::getenv("RANK") != nullptr)
    return run_rank(argv[1], argv[2], std::atoi(argv[3]), std::atoi(argv[4]));
  ps::LaunchOptions launch;
  launch.command = {std::filesystem::read_symlink("/proc/self/exe").string(), argv[1], argv[2], argv[3],
                    argv[4]};
  launch.ranks = 2;
  launch.environment["OMP_NUM_THREADS"] = "1";
  launch.on_line = [](ps::Rank, bool is_error, std::string_view line) {
    (is_error ? std::cerr : std::cout) << line << "\n";
  };
  return ps::launch(launch).exit_code();
}
