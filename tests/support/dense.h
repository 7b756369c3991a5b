// Oracle for tests of the runtime: the same stages, run sequentially in one thread, microbatch by microbatch,
// with accumulated gradients. It uses only the stage modules and the random scopes of the runtime.
#pragma once

#include "support/batch.h"

#include <penstock/runtime/pipeline.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace penstock::test {

//! A model of the runtime tests: its stages, created from a seed for each run, and its data and loss.
struct PipelineModel {
  std::string name;
  std::function<std::vector<std::shared_ptr<runtime::StageModule>>(int stages)> make;
  std::function<TestBatch(int rows)> batch;  //!< for all stages
  runtime::LossFunction loss;
  std::function<std::vector<runtime::SkipValue>(int stages)> skips = [](int) {
    return std::vector<runtime::SkipValue>();
  };
  std::function<std::vector<runtime::SharedParameter>(int stages)> shared = [](int) {
    return std::vector<runtime::SharedParameter>();
  };
  bool exact = true;  //!< bitwise equal; tied parameters are summed in another order than in a dense run
};

struct DenseRun {
  std::vector<std::vector<at::Tensor>> losses;              //!< by step, by microbatch
  std::vector<c10::IValue> outputs;                         //!< by step, merged
  std::vector<std::vector<value::NamedTensor>> gradients;   //!< by stage, of the first step
  std::vector<std::vector<value::NamedTensor>> parameters;  //!< by stage, after the last step
  std::vector<std::vector<value::NamedTensor>> buffers;
};

//! `steps` steps of SGD with rate 0.1 over batches of `rows` rows. With data parallelism, the batch is first
//! split into replicas and then into microbatches: losses are ordered by replica.
DenseRun run_dense(const PipelineModel& model, int stages, int microbatches, int rows, int steps,
                   std::uint64_t seed, int replicas = 1);

//! The rows of a batch that one of the replicas trains on.
TestBatch replica_batch(const TestBatch& batch, int replica, int replicas);

//! One SGD update of all parameters of a stage; then clears their gradients.
void sgd_step(runtime::StageModule& module);

//! Copies that later steps do not change.
std::vector<value::NamedTensor> snapshot_grads(const runtime::StageModule& module);
std::vector<value::NamedTensor> snapshot(const std::vector<value::NamedTensor>& tensors);

}  // namespace penstock::test
