// Trains a model exported by Python's `torch.export` on two ranks, without Python, and compares the losses
// with those of the same training in Python. The model computes its own loss. Run it with `penstock run
// --ranks 2 -- example_train_exported FOLDER` (or srun, mpirun, torchrun); without a launcher it uses two
// thread ranks. A second argument `cuda` gives each rank a CUDA device.
#include <penstock/comm/launched_rank.h>
#include <penstock/penstock.h>

#include <torch/torch.h>

#include <cmath>
#include <cstdio>
#include <fstream>
#include <stdexcept>
#include <string>

namespace ps = penstock;

namespace {

constexpr int kMicrobatches = 4, kRows = 8, kLength = 8, kVocabulary = 17;

// Rows that count up by 1, 2 or 3 from a start that depends on the row and the step.
torch::Tensor text_of_step(int step) {
  const torch::Tensor rows = torch::arange(kRows).unsqueeze(1);
  return (rows * 5 + step * 7 + (rows.remainder(3) + 1) * torch::arange(kLength + 1)).remainder(kVocabulary);
}

void train(const ps::World& world, const std::string& folder) {
  // Splits the archive at the `pipe_split()` call of the Python model. Each rank loads only its own stage.
  ps::Pipe pipe = ps::load_pt2(folder + "/gpt.pt2", ps::AtMarks{}, {.loss_output = "output.loss"});
  const ps::PipelineStage stage =
      pipe.build_stage(ps::StageId(world.rank().value), world.device(), world.group());
  ps::Schedule1F1B schedule(stage, kMicrobatches, pipe.pipeline_options());

  std::vector<torch::Tensor> parameters;
  for (const ps::value::NamedTensor& parameter : stage.module().parameters())
    parameters.push_back(parameter.tensor);
  torch::optim::SGD optimizer(parameters, 0.5);

  std::ifstream python(folder + "/losses.txt");
  double expected = 0, difference = 0;
  int step = 1;
  for (; python >> expected; ++step) {
    const torch::Tensor text = text_of_step(step).to(world.device());
    const ps::StepResult result =
        schedule.step({text.slice(1, 0, kLength).contiguous(), text.slice(1, 1).contiguous()});
    optimizer.step();
    optimizer.zero_grad();
    if (!stage.is_last()) continue;
    const auto loss = result.loss.item<double>();
    difference = std::max(difference, std::abs(loss - expected));
    if (step % 5 == 0) std::printf("step %d loss %.4f, in Python %.4f\n", step, loss, expected);
  }
  if (step == 1) throw std::runtime_error("no losses.txt in " + folder);
  if (!stage.is_last()) return;
  // Python's losses are rounded to 6 decimals, by up to 5e-7. Each run adds up its float32 values in another
  // order; over 20 steps, losses of about 3 then differ by a few units in the last place, which is 2.4e-7.
  // The tolerance is 5e-7 and ten such units.
  if (difference > 3e-6)
    throw std::runtime_error("the losses differ from Python's by " + std::to_string(difference));
  std::printf("%d losses equal Python's\n", step - 1);
}

}  // namespace

int main(int argc, char** argv) {
  at::set_num_threads(1);
  const std::string folder = argc > 1 ? argv[1] : "examples/exported";
  const ps::InitOptions options{.device = torch::Device(argc > 2 ? argv[2] : "cpu")};
  if (ps::comm::detect_rank().world_size > 1) {
    train(ps::init(options), folder);
  } else {
    ps::run_thread_ranks(
        2, [&](ps::World& world) { train(world, folder); }, options);
  }
}
