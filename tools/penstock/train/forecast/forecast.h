// Predicts a run from its settings, without starting it: the stages of every rank, their sizes, the memory of
// the ranks and the time of a step.
#pragma once

#include "config/train_settings.h"

#include <penstock/graph/split.h>
#include <penstock/plan/costs.h>
#include <penstock/plan/simulate.h>
#include <penstock/schedule/program.h>
#include <penstock/value/tree.h>

#include <cstdint>
#include <string>
#include <vector>

namespace penstock::tool {

//! A stage of the complete model, before it is sharded.
struct StageForecast {
  std::vector<std::string> modules{};
  std::int64_t parameters = 0;  //!< number of elements
  std::uint64_t parameter_bytes = 0;
  std::uint64_t buffer_bytes = 0;
  double flops = 0;  //!< of the forward of one microbatch
};

//! The memory that one rank needs.
struct RankForecast {
  std::uint64_t parameters = 0;  //!< with buffers
  std::uint64_t gradients = 0;
  std::uint64_t optimizer = 0;
  std::uint64_t in_flight = 0;  //!< activations at the peak and, if sharded, gathered parameters

  std::uint64_t peak() const { return parameters + gradients + optimizer + in_flight; }
};

//! What the data of a run contains.
struct DataForecast {
  std::string origin;                       //!< the file, or what is generated
  std::int64_t examples = 0;                //!< of an exported model; 0 for a text
  std::vector<std::string> tensors{};       //!< of an exported model: `tokens int64[64, 6]`
  std::int64_t characters = 0, tokens = 0;  //!< of a text, or of token files for the GPT
  std::int64_t vocabulary = 0;              //!< of the GPT
  std::int64_t validation_rows = 0;
};

struct RunForecast {
  std::string model;            //!< one line
  std::int64_t parameters = 0;  //!< of the model; a tied parameter counts once
  std::int64_t trained_parameters = 0;
  std::uint64_t parameter_bytes = 0;
  //! The dtypes of the parameters that are computed with next to float32 master weights.
  std::vector<std::string> master_dtypes;
  DataForecast data;
  std::vector<std::int64_t> rows;  //!< of each microbatch
  train::ModelSplit split;
  std::vector<std::string> split_points;  //!< where stages 1, 2, … start: `blocks.2`, `operator 12 of 50`
  std::string balance;                    //!< how the split was chosen
  std::vector<StageForecast> stages;
  std::vector<graph::SharedSlot> tied;
  double flops_per_second = 0;  //!< of a rank
  plan::Costs costs;            //!< of one rank: the local shards of the stages
  schedule::Program program;
  plan::Simulation simulation;      //!< of one pass; a step has `accumulate` of them
  std::vector<RankForecast> ranks;  //!< by pipeline rank; tensor- and data-parallel ranks are alike
  std::vector<std::string> notes;   //!< warnings, and limits of the prediction
};

//! The bytes of the states that an optimizer allocates for these parameters.
std::uint64_t optimizer_bytes(const std::vector<value::NamedTensor>& parameters,
                              const train::OptimizerOptions& options);

//! Requires a request that `check_training` has accepted. Loads no weights and runs nothing. Times assume
//! that each rank computes `flops_per_second`; the schedule of Auto does not depend on it.
RunForecast forecast(const TrainSettings& request, double flops_per_second);

}  // namespace penstock::tool
