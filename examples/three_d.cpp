// Pipeline x data x tensor parallelism: eight ranks train the built-in GPT as 2 x 2 x 2. There are two
// stages, each with two replicas, each sharded over two ranks. Ranks are threads; with processes, call
// `ps::init()` to get the world. The argument `cuda` gives each rank a CUDA device. Expected output: in every
// step, the loss equals that of a single process.
#include <penstock/models/gpt.h>
#include <penstock/penstock.h>

#include <torch/torch.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>

namespace ps = penstock;

namespace {

constexpr int kRows = 32, kLength = 12, kTokens = 32, kMicrobatches = 4, kSteps = 30;

const ps::models::GptOptions kGpt{.vocabulary = kTokens, .context = kLength, .width = 32, .tied = false};

// The full model or a part of it. Initial values depend only on the parameter's name and the seed, so both
// agree.
ps::models::Gpt make_gpt(ps::models::GptPart part) {
  ps::models::Gpt gpt(kGpt, part);
  ps::models::initialize(*gpt, kGpt, /*seed=*/1);
  return gpt;
}

// Sequences that count up by 1, 2 or 3 from a random start.
torch::Tensor make_batch(int step) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(100 + step);
  const auto start = torch::randint(kTokens, {kRows, 1}, generator),
             stride = torch::randint(1, 4, {kRows, 1}, generator);
  return (start + stride * torch::arange(kLength + 1)).remainder(kTokens);
}

torch::Tensor loss_of(const torch::Tensor& logits, const torch::Tensor& targets) {
  return torch::nn::functional::cross_entropy(logits.flatten(0, 1), targets.flatten());
}

std::vector<double> train_alone() {
  auto gpt = make_gpt(ps::models::GptPart::full(kGpt));
  torch::optim::AdamW optimizer(gpt->parameters(), torch::optim::AdamWOptions(3e-3));
  std::vector<double> losses;
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    const torch::Tensor rows = make_batch(step);
    const torch::Tensor loss = loss_of(gpt->forward(rows.slice(1, 0, -1)), rows.slice(1, 1));
    loss.backward();
    optimizer.step();
    losses.push_back(loss.item<double>());
  }
  return losses;
}

void train_in_3d(ps::World& world, const std::vector<double>& alone) {
  const ps::DeviceMesh mesh(world.group(), {2, 2, 2}, {"pp", "dp", "tp"});
  const int stage = mesh.group("pp").rank(), replica = mesh.group("dp").rank();
  auto gpt = make_gpt({2 * stage, 2 * stage + 2, /*has_embedding=*/stage == 0, /*has_head=*/stage == 1});
  gpt->to(world.device());
  // Apply tensor parallelism first, then build the stage, then replicate it.
  ps::parallelize_module(*gpt, mesh["tp"],
                         {{"blocks.*.attention.query", ps::ColwiseParallel()},
                          {"blocks.*.attention.key", ps::ColwiseParallel()},
                          {"blocks.*.attention.value", ps::ColwiseParallel()},
                          {"blocks.*.attention.out", ps::RowwiseParallel()},
                          {"blocks.*.mlp.up", ps::ColwiseParallel()},
                          {"blocks.*.mlp.down", ps::RowwiseParallel()}});
  const auto forward = [gpt](const ps::Args& args, const ps::Kwargs&) mutable {
    return ps::StageResult(
        gpt->forward(args[0].toTensor()));  // a distributed tensor; it is sent to the next stage as such
  };
  const std::vector<ps::PipelineStage> stages{
      {ps::make_stage_module(gpt.ptr(), forward), ps::StageId(stage), 2, world.device(), mesh.group("pp")}};
  ps::PipelineOptions options;
  options.loss = loss_of;
  options.loss_on_all_ranks = true;
  options.data_parallel = std::make_shared<ps::ReplicatedStages>(stages, mesh.group("dp"));
  ps::PipelineSchedule schedule(stages, "1F1B", kMicrobatches, options);

  torch::optim::AdamW optimizer(gpt->parameters(), torch::optim::AdamWOptions(3e-3));
  for (int step = 0; step < kSteps; ++step) {
    const torch::Tensor rows =
        make_batch(step).chunk(2)[static_cast<std::size_t>(replica)].to(world.device());
    optimizer.zero_grad();
    torch::Tensor mean = schedule.step({rows.slice(1, 0, -1)}, rows.slice(1, 1)).loss;
    optimizer.step();
    mesh.group("dp").all_reduce(mean, ps::ReduceOp::Avg);
    const double loss = mean.item<double>(), single = alone[static_cast<std::size_t>(step)];
    if (std::abs(loss - single) > 1e-4) std::exit(1);
    if (world.rank().value == 0 && (step + 1) % 10 == 0)
      std::printf("step %d loss %.3f, single process %.3f\n", step + 1, loss, single);
  }
}

}  // namespace

int main(int argc, char** argv) {
  at::set_num_threads(1);
  const std::vector<double> alone = train_alone();
  ps::run_thread_ranks(8, [&](ps::World& world) { train_in_3d(world, alone); },
                       {.device = torch::Device(argc > 1 ? argv[1] : "cpu")});
}
