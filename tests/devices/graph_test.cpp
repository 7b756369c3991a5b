// Graphs on simulated devices: archives, captured models, profiles, and pipelines made from them.
#include "graph/run/node_profile.h"
#include "simulated_device_test.h"
#include "support/mesh_ranks.h"
#include "support/tensor_file.h"

#include <penstock/comm/thread_ranks.h>
#include <penstock/graph/capture.h>
#include <penstock/graph/graph_module.h>
#include <penstock/graph/pt2.h>
#include <penstock/load_module.h>
#include <penstock/pipe/pipe.h>
#include <penstock/runtime/pipeline.h>

#include <torch/torch.h>

namespace penstock::test {
namespace {

class DevicesGraph : public SimulatedDeviceTest {
 protected:
  DevicesGraph() { at::globalContext().setSDPUseMath(true); }
};

// Some archives have a fixed number of rows.
at::Tensor input_of(const std::string& name, std::int64_t rows = 8) {
  if (name == "gpt") return at::arange(5 * rows).remainder(13).view({rows, 5});
  if (name == "convnet") return numbers({rows, 2, 8, 8}, 4);
  if (name == "lstm") return numbers({rows, 5, 3}, 4);
  return numbers({rows, 6}, 4);
}

at::Tensor first_tensor(const c10::IValue& output) {
  return value::tensors_of(output).at(0);
}

TEST_F(DevicesGraph, ExportedModelsGiveOutputsAndGradientsOfCpu) {
  for (const std::string name : {"mlp", "gpt", "convnet"}) {
    SCOPED_TRACE(name);
    const auto run = [&](c10::Device device) {
      graph::ExportedModule model = graph::load_module(archive(name + ".pt2"), device);
      model->eval();
      const at::Tensor output = first_tensor(model->forward({input_of(name, 2).to(device)}));
      EXPECT_EQ(output.device(), device);
      output.square().mean().backward();
      std::vector<at::Tensor> results{output.detach().cpu()};
      for (const at::Tensor& parameter : model->parameters()) results.push_back(parameter.grad().cpu());
      return results;
    };
    const std::vector<at::Tensor> expected = run(c10::kCPU), actual = run(kCuda1);
    ASSERT_EQ(actual.size(), expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i)
      EXPECT_LT(difference(actual[i], expected[i]), 1e-5) << i;
  }
}

TEST_F(DevicesGraph, PipelinesOfArchivesGiveLossesOfCpu) {
  for (const std::string name : {"mlp", "gpt", "convnet"}) {
    SCOPED_TRACE(name);
    const auto train_on = [&](c10::DeviceType type) {
      std::vector<double> losses;
      comm::run_thread_ranks(
          2,
          [&](comm::World& world) {
            const graph::Pt2Archive file(archive(name + ".pt2"));
            const auto load = [&](const std::vector<graph::Slot>& slots) { return file.load(slots); };
            pipe::Pipe pipe(file.graph(), load, pipe::SplitPolicy([](const graph::Graph& graph) {
                              const auto legal = legal_split_positions(graph);
                              return graph::SplitPositions{legal[legal.size() / 2]};
                            }));
            pipe.eval();
            runtime::PipelineOptions options = pipe.pipeline_options();
            options.loss = [](const c10::IValue& output, const c10::IValue&, const value::Kwargs&) {
              return first_tensor(output).square().mean();
            };
            options.loss_needs_target = false;
            options.loss_on_all_ranks = true;
            const StageId stage(world.rank().value);
            runtime::PipelineSchedule pipeline(pipe.build_stage(stage, world.device(), world.group()), "1F1B",
                                               4, options);
            for (int step = 0; step < 3; ++step) {
              const auto result = pipeline.step({input_of(name).to(world.device())});
              if (world.rank().value == 0) losses.push_back(result.loss.item<double>());
              const torch::NoGradGuard no_grad;
              for (const value::NamedTensor& item : pipeline.stages()[0].module().parameters()) {
                if (!item.tensor.grad().defined()) continue;
                item.tensor.sub_(item.tensor.grad(), 0.1);
                item.tensor.mutable_grad() = at::Tensor();
              }
            }
          },
          {.device = type});
      return losses;
    };
    const std::vector<double> expected = train_on(c10::kCPU);
    EXPECT_LT(expected.back(), expected.front());
    EXPECT_THAT(train_on(c10::kCUDA), testing::Pointwise(testing::DoubleNear(1e-5), expected));
  }
}

TEST_F(DevicesGraph, ProfileWaitsForEachNode) {
  const graph::Pt2Archive file(archive("mlp.pt2"));
  const graph::GraphModule module(file.graph(), file.load(file.graph().slots), kCuda0);
  settle();
  const std::vector<double> seconds = profile_nodes(module, {input_of("mlp").to(kCuda0)}, 1);
  EXPECT_GE(simulated::host_syncs().size(), 2 * module.graph().nodes.size());
  for (const double time : seconds) EXPECT_GT(time, 0);
}

struct Masked : torch::nn::Module {
  Masked() { linear = register_module("linear", torch::nn::Linear(4, 4)); }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor positions = torch::arange(4, at::device(x.device()).dtype(at::kFloat));
    at::Tensor y = linear(x) + positions;
    const torch::NoGradGuard no_grad;
    return y * 2;
  }
  torch::nn::Linear linear{nullptr};
};

TEST_F(DevicesGraph, CapturesModelOnDeviceAndRunsItOnAnother) {
  torch::manual_seed(1);
  const auto model = std::make_shared<Masked>();
  const at::Tensor x = numbers({3, 4}, 2), expected = model->forward(x);
  model->to(kCuda0);
  graph::ModelTensors tensors;
  for (const auto& item : model->named_parameters()) tensors.parameters.push_back({item.key(), item.value()});
  const auto forward = [&](const value::Args& args, const value::Kwargs&) {
    return c10::IValue(model->forward(args[0].toTensor()));
  };
  graph::Captured recorded = capture(forward, tensors, {x.to(kCuda0)});
  graph::GraphModule captured(recorded.graph, recorded.tensors);
  EXPECT_LT(difference(first_tensor(captured.forward({x.to(kCuda0)})).cpu(), expected), 1e-6);
  captured.to(kCuda1);
  EXPECT_LT(difference(first_tensor(captured.forward({x.to(kCuda1)})).cpu(), expected), 1e-6);
}

}  // namespace
}  // namespace penstock::test
