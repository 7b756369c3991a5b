// Pipeline and tensor parallelism combined: stages with sharded parameters exchange plain, full activations.
// Compared with one process.
#include "support/batch.h"
#include "support/mesh_ranks.h"
#include "support/models/mlp.h"

#include <penstock/base/error.h>
#include <penstock/parallel/tensor_parallel.h>
#include <penstock/runtime/pipeline.h>
#include <penstock/runtime/stage_module.h>
#include <penstock/tensor/dtensor.h>

#include <torch/torch.h>

#include <cmath>
#include <functional>
#include <optional>
#include <set>

namespace penstock::test {
namespace {

constexpr std::int64_t kStageWidth = 6, kStageRows = 8;

ResidualMlp make_layer(unsigned seed) {
  ResidualMlp layer(kStageWidth);
  const torch::NoGradGuard no_grad;
  for (at::Tensor& parameter : layer->parameters()) parameter.copy_(numbers(parameter.sizes(), ++seed) * 0.4);
  return layer;
}

TEST(ParallelTensorParallel, TrainsInPipelineStages) {
  const at::Tensor x = numbers({kStageRows, 3, kStageWidth}, 100),
                   target = numbers({kStageRows, 3, kStageWidth}, 101);
  for (const std::string name : {"1F1B", "ZBVZeroBubble", "Interleaved1F1B"}) {
    const int per_rank = name == "1F1B" ? 1 : 2, count = 2 * per_rank;
    std::vector<ResidualMlp> dense;
    for (int stage = 0; stage < count; ++stage)
      dense.push_back(make_layer(static_cast<unsigned>(stage * 10)));
    at::Tensor y = x;
    for (ResidualMlp& layer : dense) y = layer(y);
    const at::Tensor loss = at::mse_loss(y, target);
    loss.backward();

    on_mesh({2, 2}, [&](const tensor::DeviceMesh& mesh) {  // x: pipeline, y: tensor parallel
      const int rank = static_cast<int>(mesh.coordinate(0));
      std::vector<int> mine{rank};
      if (per_rank == 2) mine.push_back(name == "ZBVZeroBubble" ? 3 - rank : 2 + rank);
      std::vector<ResidualMlp> layers;
      std::vector<runtime::PipelineStage> stages;
      for (const int stage : mine) {
        ResidualMlp layer = make_layer(static_cast<unsigned>(stage * 10));
        parallel::parallelize_module(
            *layer, mesh["y"], {{"up", parallel::ColwiseParallel()}, {"down", parallel::RowwiseParallel()}});
        layers.push_back(layer);
        const auto forward = [layer](const value::Args& args, const value::Kwargs&) mutable {
          return runtime::StageResult(tensor::full_tensor(layer(args[0].toTensor())));
        };
        stages.emplace_back(runtime::make_stage_module(layer.ptr(), forward), StageId(stage), count, at::kCPU,
                            mesh.group("x"));
      }
      runtime::PipelineOptions options;
      options.loss =
          runtime::tensor_loss([](const at::Tensor& a, const at::Tensor& b) { return at::mse_loss(a, b); });
      runtime::PipelineSchedule schedule(stages, name, 4, options);
      const runtime::StepResult result = schedule.step({x}, target);
      if (result.loss.defined()) {
        EXPECT_NEAR(result.loss.item<double>(), loss.item<double>(), 1e-5) << name;
      }
      for (std::size_t i = 0; i < mine.size(); ++i) {
        const auto got = layers[i]->parameters(),
                   want = dense[static_cast<std::size_t>(mine[i])]->parameters();
        for (std::size_t k = 0; k < got.size(); ++k) {
          EXPECT_LT(difference(full_copy(got[k].grad()), want[k].grad()), 1e-5)
              << name << " stage " << mine[i] << " parameter " << k;
        }
      }
    });
  }
}

// Microbatches of a batch with sharded rows contain rows of every shard; those of a plain tensor contain
// adjacent rows.
class ShardedRows {
 public:
  ShardedRows(const tensor::DeviceMesh& mesh, int microbatches, bool takes_mask) : mesh_(mesh["y"]) {
    const auto stage = static_cast<int>(mesh.coordinate(0));
    ResidualMlp layer = make_layer(static_cast<unsigned>(stage * 10));
    const auto forward = [layer](const value::Args& args, const value::Kwargs& kwargs) mutable {
      const at::Tensor y = layer(args[0].toTensor());
      return runtime::StageResult(kwargs.empty() ? y : y * kwargs.at("mask").toTensor());
    };
    const std::set<std::string> names = takes_mask ? std::set<std::string>{"mask"} : std::set<std::string>{};
    runtime::StageOptions stage_options;
    stage_options.mesh = mesh_;
    runtime::PipelineOptions options;
    options.loss =
        runtime::tensor_loss([](const at::Tensor& a, const at::Tensor& b) { return (a - b).pow(2).mean(); });
    const auto count = static_cast<int>(mesh.shape()[0]);
    schedule_.emplace(std::vector<runtime::PipelineStage>{runtime::PipelineStage(
                          runtime::make_stage_module(layer.ptr(), forward, names), StageId(stage), count,
                          at::kCPU, mesh.group("x"), stage_options)},
                      "GPipe", microbatches, options);
  }

  at::Tensor sharded(const at::Tensor& dense) const {
    return distribute_tensor(dense, mesh_, {tensor::Shard(0)}, false);
  }
  at::Tensor replicated(const at::Tensor& dense) const {
    return distribute_tensor(dense, mesh_, {tensor::Replicate()}, false);
  }
  //! The loss on ranks that know it; NaN elsewhere.
  double loss(const TestBatch& input) {
    const runtime::StepResult result = step_on(*schedule_, input);
    return result.loss.defined() ? full_copy(result.loss).item<double>() : std::nan("");
  }

 private:
  tensor::DeviceMesh mesh_;
  std::optional<runtime::PipelineSchedule> schedule_;
};

const at::Tensor kBatchRows = numbers({kStageRows, kStageWidth}, 100),
                 kBatchTargets = numbers({kStageRows, kStageWidth}, 101),
                 kBatchMask = numbers({kStageRows, 1}, 102);

TEST(ParallelShardedRows, PairWithTargetsOfSamePlacements) {
  for (const int stages : {1, 2}) {
    at::Tensor y = kBatchRows;
    for (int stage = 0; stage < stages; ++stage) y = make_layer(static_cast<unsigned>(stage * 10))(y);
    const double want = at::mse_loss(y, kBatchTargets).item<double>();
    on_mesh({stages, 2}, [&](const tensor::DeviceMesh& mesh) {
      const auto expect_loss = [&](int microbatches, const TestBatch& input) {
        const double got = ShardedRows(mesh, microbatches, false).loss(input);
        if (mesh.coordinate(0) == stages - 1) {
          EXPECT_NEAR(got, want, 1e-5);
        }
      };
      const ShardedRows put(mesh, 4, false);
      expect_loss(4, {{put.sharded(kBatchRows)}, put.sharded(kBatchTargets)});
      expect_loss(4, {{kBatchRows}, kBatchTargets});
      expect_loss(4, {{put.replicated(kBatchRows)}, kBatchTargets});
      // A single microbatch has all rows.
      expect_loss(1, {{put.sharded(kBatchRows)}, kBatchTargets});
    });
  }
}

TEST(ParallelShardedRows, RejectTargetsOfOtherPlacements) {
  using Make = std::function<TestBatch(const ShardedRows&)>;
  const std::vector<std::pair<bool, Make>> refused{
      {false,
       [](const ShardedRows& p) {
         return TestBatch{{p.sharded(kBatchRows)}, kBatchTargets};
       }},
      {false,
       [](const ShardedRows& p) {
         return TestBatch{{p.sharded(kBatchRows)}, p.replicated(kBatchTargets)};
       }},
      {false,
       [](const ShardedRows& p) {
         return TestBatch{{kBatchRows}, p.sharded(kBatchTargets)};
       }},
      {true, [](const ShardedRows& p) {
         return TestBatch{
             {p.sharded(kBatchRows)}, p.sharded(kBatchTargets), {.kwargs = {{"mask", kBatchMask}}}};
       }}};
  for (const int stages : {1, 2}) {
    for (std::size_t i = 0; i < refused.size(); ++i) {
      on_mesh({stages, 2}, [&](const tensor::DeviceMesh& mesh) {
        // A rank may first learn of the error from another rank.
        try {
          ShardedRows rows(mesh, 4, refused[i].first);
          rows.loss(refused[i].second(rows));
          ADD_FAILURE() << stages << " stages, case " << i;
        } catch (const Error& e) {
          const std::string text = std::string(e.what()) + "\n" + e.hint();
          for (const char* part : {"would pair different rows", "not sharded",
                                   "distribute_tensor(target, mesh_of(input), placements_of(input))"})
            EXPECT_NE(text.find(part), std::string::npos) << stages << " stages, case " << i << ": " << text;
        }
      });
    }
  }
}

TEST(ParallelShardedRows, KeepPlacementsWithStaticShapes) {
  on_mesh({2, 2}, [](const tensor::DeviceMesh& mesh) {
    const tensor::DeviceMesh tp = mesh["y"];
    const runtime::StageFunction forward = [](const value::Args& args, const value::Kwargs&) {
      return runtime::StageResult(args[0].toTensor() * 2);
    };
    runtime::StageOptions stage_options;
    stage_options.mesh = tp;
    runtime::PipelineOptions options;
    options.shapes = runtime::ShapeMode::Static;
    const runtime::PipelineStage stage(runtime::make_stage_module(nullptr, forward),
                                       StageId(static_cast<int>(mesh.coordinate(0))), 2, at::kCPU,
                                       mesh.group("x"), stage_options);
    runtime::PipelineSchedule schedule(stage, "ForwardOnly", 4, options);
    schedule.step({tensor::distribute_tensor(kBatchRows, tp, {tensor::Replicate()}, false)});
    try {
      schedule.step({tensor::distribute_tensor(kBatchRows, tp, {tensor::Shard(0)}, false)});
      ADD_FAILURE() << "accepted other placements";
    } catch (const Error& e) {
      const std::string text = std::string(e.what()) + "\n" + e.hint();
      EXPECT_NE(text.find("args[0] is DeviceMesh(y=2) [Shard(0)], expected DeviceMesh(y=2) [Replicate]"),
                std::string::npos)
          << text;
      EXPECT_NE(text.find("redistribute the inputs"), std::string::npos) << text;
    }
  });
}

// Outputs have the row order of the batch, whatever the placements of the batch and of the outputs.
TEST(ParallelShardedRows, MergeInBatchOrder) {
  using Make = std::function<at::Tensor(const at::Tensor&, const tensor::DeviceMesh&)>;
  const auto placed = [](const tensor::AxisPlacement& placement) -> Make {
    return [placement](const at::Tensor& y, const tensor::DeviceMesh& mesh) {
      const at::Tensor full = tensor::is_dtensor(y) ? tensor::full_tensor(y) : y;
      return tensor::distribute_tensor(full, mesh, {placement}, false);
    };
  };
  const std::vector<std::pair<std::string, Make>> layouts{
      {"plain", [](const at::Tensor& y,
                   const tensor::DeviceMesh&) { return tensor::is_dtensor(y) ? tensor::full_tensor(y) : y; }},
      {"Replicate", placed(tensor::Replicate())},
      {"Shard(0)", placed(tensor::Shard(0))},
      {"Shard(1)", placed(tensor::Shard(1))}};
  // 8 rows in 2 shards; 7 rows, which are sharded unevenly, in 2 microbatches of 4 and 3 rows; one or two
  // output rows per row of the batch.
  for (const auto& [rows, count] : {std::pair(8, 4), std::pair(7, 2)}) {
    for (const int repeat : {1, 2}) {
      const at::Tensor x = at::arange(rows * 2, at::kFloat).view({rows, 2});
      const at::Tensor want = (x * 3).repeat_interleave(repeat, 0);
      for (const auto& [batch_layout, batch_of] : layouts) {
        for (const auto& [output_layout, output_of] : layouts) {
          SCOPED_TRACE(std::to_string(rows) + " rows x " + std::to_string(repeat) + ", batch " +
                       batch_layout + ", output " + output_layout);
          on_mesh({2, 2}, [&, microbatches = count, make_batch = batch_of,
                           make_output = output_of](const tensor::DeviceMesh& mesh) {
            const auto stage = static_cast<int>(mesh.coordinate(0));
            const tensor::DeviceMesh tp = mesh["y"];
            const runtime::StageFunction forward = [&](const value::Args& args,
                                                       const value::Kwargs&) -> runtime::StageResult {
              if (stage == 0) return args[0].toTensor() * 3;
              const at::Tensor full = tensor::is_dtensor(args[0].toTensor())
                                          ? tensor::full_tensor(args[0].toTensor())
                                          : args[0].toTensor();
              return make_output(full.repeat_interleave(repeat, 0), tp);
            };
            runtime::StageOptions options;
            options.mesh = tp;
            const runtime::PipelineStage own(runtime::make_stage_module(nullptr, forward), StageId(stage), 2,
                                             at::kCPU, mesh.group("x"), options);
            runtime::PipelineSchedule schedule(own, "ForwardOnly", microbatches);
            for (int step = 0; step < 2; ++step) {
              const c10::IValue outputs = schedule.step({make_batch(x, tp)}).outputs;
              if (stage == 0) continue;
              EXPECT_TRUE(at::equal(full_copy(outputs.toTensor()), want)) << full_copy(outputs.toTensor());
            }
          });
        }
      }
    }
  }
}

}  // namespace
}  // namespace penstock::test
