// Pipeline x data x tensor parallel of the built-in GPT on one rank, and its oracle: one process that trains
// the same model on the whole batch.
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
enum class Data { None, Replicated, Sharded };
//! What a stage hands over: whole tensors, or distributed ones as they come or cut along a dim.
enum class Activation { Whole, AsItIs, CutRows, CutTime };

const char* text(Kind kind);
const char* text(Data data);
const char* text(Activation activation);

using Tensors = std::map<std::string, at::Tensor>;

struct DenseTraining {
  std::vector<double> losses;
  Tensors gradients;   //!< of the first step; undefined where there is none
  Tensors parameters;  //!< after the last
};
//! Steps of AdamW over batches of kBatch rows; `repeats` backwards a step.
DenseTraining train_dense(Kind kind, int repeats = 1);

struct Batch {
  at::Tensor inputs, targets;
};
Batch batch_of(int step);

//! Gradients of these rows, one microbatch after the other in one process, or the last one first.
Tensors microbatch_gradients(Kind kind, const Batch& rows, bool backwards);

struct Row {
  schedule::ScheduleKind schedule;
  int stages_per_rank;
  std::string text() const;
};
//! Every schedule that trains on so many ranks.
std::vector<Row> schedules(int ranks);

struct Axes {
  int pp = 1, replicas = 1, dp = 1, tp = 1;
  int ranks() const { return pp * replicas * dp * tp; }
};

class ThreeD {
 public:
  ThreeD(const comm::World& world, Axes axes, schedule::ScheduleKind schedule, int stages_per_rank, Kind kind,
         Data data, Activation activation = Activation::Whole,
         const runtime::StageOptions& stage_options = {});

  //! Options for its stages; the loss is the mean.
  runtime::PipelineOptions options() const;
  //! This rank's part of a step's batch.
  Batch part_of(const Batch& batch) const;
  //! The batch's loss, on every rank of the last stage; undefined elsewhere.
  at::Tensor mean(const at::Tensor& loss) const;

  //! For an optimizer.
  std::vector<at::Tensor> trained() const;
  void drop_gradients() const;
  //! Whole, by name. Collective over the axes of data and tensor parallelism.
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

//! Throws where something differs.
void expect_equal(const std::string& what, const Tensors& actual, const Tensors& expected, double factor = 1);

}  // namespace penstock::test
