// One rank of the built-in GPT with pipeline, data and tensor parallelism, and its oracle: one process that
// trains the same model on the full batch.
#pragma once

#include <penstock/comm/world.h>
#include <penstock/models/gpt.h>
#include <penstock/parallel/pipeline_data_parallel.h>
#include <penstock/parallel/tensor_parallel.h>
#include <penstock/runtime/pipeline.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace penstock::test {

constexpr int kMicrobatches = 4, kBatch = 16, kTime = 5, kTrainSteps = 3;
constexpr std::int64_t kUnitBytes = 600;  //!< so that a stage has several units

enum class Kind { Plain, Tied, Frozen };
enum class Data { None, Replicated, Sharded, ShardedGradients, ShardedOptimizer };
//! What a stage passes on: full tensors, distributed tensors as they are, or sharded along a dim.
enum class Activation { Full, AsItIs, ShardRows, ShardTime };

const char* text(Kind kind);
const char* text(Data data);
const char* text(Activation activation);

using Tensors = std::map<std::string, at::Tensor>;

struct DenseTraining {
  std::vector<double> losses;
  Tensors gradients;   //!< of the first step; undefined if there is none
  Tensors parameters;  //!< after the last step
};
//! Trains with AdamW on batches of kBatch rows, with `repeats` backward passes per step.
DenseTraining train_dense(Kind kind, int repeats = 1);

struct Batch {
  at::Tensor inputs, targets;
};
Batch batch_of(int step);

//! The gradients of these rows in one process, microbatch by microbatch, in order or in reverse order.
Tensors microbatch_gradients(Kind kind, const Batch& rows, bool backwards);

struct Row {
  schedule::ScheduleKind schedule;
  int stages_per_rank;
  std::string text() const;
};
//! Every schedule that trains on this number of ranks.
std::vector<Row> schedules(int ranks);

struct Axes {
  int pp = 1, replicas = 1, dp = 1, tp = 1;
  int ranks() const { return pp * replicas * dp * tp; }
};

class ThreeAxisGpt {
 public:
  ThreeAxisGpt(const comm::World& world, Axes axes, schedule::ScheduleKind schedule, int stages_per_rank,
               Kind kind, Data data, Activation activation = Activation::Full,
               const runtime::StageOptions& stage_options = {});

  //! Options of the stages; the loss is the mean.
  runtime::PipelineOptions options() const;
  //! The rows of this rank in the batch of a step.
  Batch local_rows(const Batch& batch) const;
  //! The loss of the batch on every rank of the last stage; undefined elsewhere.
  at::Tensor mean(const at::Tensor& loss) const;

  //! The parameters for an optimizer.
  std::vector<at::Tensor> optimizer_parameters() const;
  void drop_gradients() const;
  //! Full tensors by name. Collective over the data- and tensor-parallel axes.
  Tensors gradients() const;
  Tensors parameters() const;

  tensor::DeviceMesh mesh;  //!< pp, replicas, dp, tp
  std::vector<runtime::PipelineStage> stages;
  std::shared_ptr<parallel::ReplicatedStages> replicated;
  std::shared_ptr<parallel::ShardedStages> sharded;

 private:
  std::vector<runtime::SharedParameter> shared_;
  std::vector<models::Gpt> parts_;
};

//! Throws if anything differs.
void expect_equal(const std::string& what, const Tensors& actual, const Tensors& expected, double factor = 1);

}  // namespace penstock::test
