// Pipeline times tensor parallel: stages whose parameters are cut hand over plain, whole activations. Against
// one process.
#include "tensor/ranks.h"

#include <penstock/parallel/tensor_parallel.h>
#include <penstock/runtime/pipeline.h>
#include <penstock/runtime/stage_module.h>

#include <torch/torch.h>

namespace penstock::test {
namespace {

constexpr std::int64_t kStageWidth = 6, kStageRows = 8;

struct LayerImpl : torch::nn::Module {
  explicit LayerImpl(unsigned seed) {
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kStageWidth})));
    up = register_module("up", torch::nn::Linear(kStageWidth, 2 * kStageWidth + 1));
    down = register_module("down", torch::nn::Linear(2 * kStageWidth + 1, kStageWidth));
    const torch::NoGradGuard no_grad;
    for (at::Tensor& parameter : parameters()) parameter.copy_(numbers(parameter.sizes(), ++seed) * 0.4);
  }
  at::Tensor forward(const at::Tensor& x) { return x + down(at::gelu(up(norm(x)))); }
  torch::nn::LayerNorm norm{nullptr};
  torch::nn::Linear up{nullptr}, down{nullptr};
};
TORCH_MODULE(Layer);

TEST(TensorParallel, TrainsInStagesOfAPipeline) {
  const at::Tensor x = numbers({kStageRows, 3, kStageWidth}, 100),
                   target = numbers({kStageRows, 3, kStageWidth}, 101);
  for (const std::string name : {"1F1B", "ZBVZeroBubble", "Interleaved1F1B"}) {
    const int per_rank = name == "1F1B" ? 1 : 2, count = 2 * per_rank;
    std::vector<Layer> dense;
    for (int stage = 0; stage < count; ++stage) dense.emplace_back(static_cast<unsigned>(stage * 10));
    at::Tensor y = x;
    for (Layer& layer : dense) y = layer(y);
    const at::Tensor loss = at::mse_loss(y, target);
    loss.backward();

    on_mesh({2, 2}, [&](const DeviceMesh& mesh) {  // x: the pipeline, y: tensor parallel
      const int rank = static_cast<int>(mesh.coordinate(0));
      std::vector<int> mine{rank};
      if (per_rank == 2) mine.push_back(name == "ZBVZeroBubble" ? 3 - rank : 2 + rank);
      std::vector<Layer> layers;
      std::vector<PipelineStage> stages;
      for (const int stage : mine) {
        Layer layer(static_cast<unsigned>(stage * 10));
        parallelize_module(*layer, mesh["y"], {{"up", ColwiseParallel()}, {"down", RowwiseParallel()}});
        layers.push_back(layer);
        const auto forward = [layer](const Args& args, const Kwargs&) mutable {
          return StageResult(full_tensor(layer(args[0].toTensor())));
        };
        stages.emplace_back(make_stage_module(layer.ptr(), forward), stage, count, at::kCPU, mesh.group("x"));
      }
      PipelineOptions options;
      options.loss = tensor_loss([](const at::Tensor& a, const at::Tensor& b) { return at::mse_loss(a, b); });
      PipelineSchedule schedule(stages, name, 4, options);
      const StepResult result = schedule.step({x}, target);
      if (result.loss.defined()) {
        EXPECT_NEAR(result.loss.item<double>(), loss.item<double>(), 1e-5) << name;
      }
      for (std::size_t i = 0; i < mine.size(); ++i) {
        const auto got = layers[i]->parameters(),
                   want = dense[static_cast<std::size_t>(mine[i])]->parameters();
        for (std::size_t k = 0; k < got.size(); ++k) {
          EXPECT_LT(difference(whole(got[k].grad()), want[k].grad()), 1e-5)
              << name << " stage " << mine[i] << " parameter " << k;
        }
      }
    });
  }
}

}  // namespace
}  // namespace penstock::test
