// Trains a small MLP as a pipeline of hand-written stages: one module per stage, one stage per rank. Start it
// with `penstock run --ranks 4 -- ./mlp_pipeline`, torchrun, srun or mpirun; without a launcher, the four
// ranks are threads. The argument `cuda` gives each rank a CUDA device.
#include <penstock/penstock.h>

#include <torch/torch.h>

#include <cmath>
#include <cstdio>

namespace ps = penstock;

namespace {

constexpr int kRanks = 4, kMicrobatches = 8, kRows = 64, kWidth = 32, kSteps = 60;

// The first stage is the input layer, the last stage the output layer, and each stage between them one hidden
// layer.
torch::nn::Sequential make_stage(int stage) {
  const int in = stage == 0 ? 2 : kWidth;
  const int out = stage == kRanks - 1 ? 1 : kWidth;
  torch::nn::Sequential module{torch::nn::Linear(in, out)};
  if (stage < kRanks - 1) module->push_back(torch::nn::Tanh());
  return module;
}

void train(ps::World& world) {
  const int rank = world.rank().value;
  torch::nn::Sequential module = make_stage(rank);
  auto generator = at::make_generator<at::CPUGeneratorImpl>(7 + rank);
  for (auto& parameter : module->parameters()) {
    const torch::NoGradGuard no_grad;
    parameter.normal_(0, 1 / std::sqrt(double(parameter.size(-1))), generator);
  }
  const ps::PipelineStage stage(module, ps::StageId(rank), kRanks, world.device(), world.group());
  torch::optim::Adam optimizer(module->parameters(), 0.01);
  ps::Schedule1F1B schedule(stage, kMicrobatches, {.loss = torch::mse_loss});

  auto data = at::make_generator<at::CPUGeneratorImpl>(1);
  const at::Tensor x = (torch::rand({kRows, 2}, data) * 2 - 1).to(world.device());
  const at::Tensor target = x.prod(1, true);  // the product of the two numbers
  for (int step = 1; step <= kSteps; ++step) {
    const ps::StepResult result = schedule.step({x}, target);
    schedule.clip_grad_norm(1.0);
    optimizer.step();
    optimizer.zero_grad();
    if (stage.is_last() && step % 20 == 0)
      std::printf("step %d loss %.3f\n", step, result.loss.item<double>());
  }
}

}  // namespace

int main(int argc, char** argv) {
  at::set_num_threads(1);
  const torch::Device device(argc > 1 ? argv[1] : "cpu");
  ps::World world = ps::init({.device = device});
  if (world.size() == kRanks) {
    train(world);
  } else {
    ps::run_thread_ranks(kRanks, train, {.device = device});
  }
}
