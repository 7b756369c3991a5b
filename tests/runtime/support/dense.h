// The oracle of the runtime's tests: the same stages run one after the other in one thread, microbatch by
// microbatch, gradients accumulated. Nothing of the runtime is used but the stage modules and the random
// scopes.
#pragma once

#include <penstock/runtime/pipeline.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace penstock::test {

//! A model as the tests know it: its stages, made anew for each run from a seed, and what trains it.
struct PipelineModel {
  std::string name;
  std::function<std::vector<std::shared_ptr<runtime::StageModule>>(int stages)> make;
  std::function<runtime::StepInput(int rows)> batch;  //!< for all stages
  runtime::LossFunction loss;
  std::function<std::vector<runtime::SkipValue>(int stages)> skips = [](int) {
    return std::vector<runtime::SkipValue>();
  };
  std::function<std::vector<runtime::SharedParameter>(int stages)> shared = [](int) {
    return std::vector<runtime::SharedParameter>();
  };
  bool exact = true;  //!< bitwise; shared parameters are summed in another order than in a dense run
};

struct DenseRun {
  std::vector<std::vector<at::Tensor>> losses;                //!< by step, by microbatch
  std::vector<c10::IValue> outputs;                           //!< by step, merged
  std::vector<std::vector<runtime::NamedTensor>> gradients;   //!< by stage, of the first step
  std::vector<std::vector<runtime::NamedTensor>> parameters;  //!< by stage, after the last step
  std::vector<std::vector<runtime::NamedTensor>> buffers;
};

//! `steps` steps of SGD with rate 0.1 over batches of `rows` rows. With data parallelism the batch is cut for
//! the replicas first, and each part into its microbatches: losses come replica by replica.
DenseRun run_dense(const PipelineModel& model, int stages, int microbatches, int rows, int steps,
                   std::uint64_t seed, int replicas = 1);

//! The part of a batch that one of the replicas trains on.
runtime::StepInput part_of(const runtime::StepInput& batch, int replica, int replicas);

//! SGD on all parameters of a stage, then their gradients are dropped.
void sgd_step(runtime::StageModule& module);

//! Copies that later steps do not change.
std::vector<runtime::NamedTensor> snapshot_grads(const runtime::StageModule& module);
std::vector<runtime::NamedTensor> snapshot(const std::vector<runtime::NamedTensor>& tensors);

}  // namespace penstock::test
