// What the trainer asks of a model: to be cut into stages, and to give those that a rank holds.
#pragma once

#include <penstock/checkpoint/piece.h>
#include <penstock/models/gpt_options.h>
#include <penstock/parallel/tensor_parallel.h>
#include <penstock/pipe/pipe.h>
#include <penstock/runtime/pipeline.h>
#include <penstock/train/data.h>
#include <penstock/train/options.h>

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace penstock::train {

//! What a model is beyond the tensors of its stages: checkpoints hold all of its state_dict, and nothing
//! else.
struct ModelState {
  std::map<std::string, std::vector<std::string>>
      aliases{};                      //!< further names of tied tensors, by the stages' name
  std::set<std::string> transient{};  //!< buffers that are no part of the state
  std::vector<Piece> idle{};          //!< tensors that no stage computes with
};

class Model {
 public:
  virtual ~Model() = default;

  //! Where so many stages of about equal measured time begin, as a text for `use_cuts`; empty for models that
  //! are not balanced by measured times. One rank measures, on the rows of a microbatch, for all.
  virtual std::string measured_cuts(int /*stages*/, const Batch& /*microbatch*/) { return {}; }
  //! What `cut` shall do for that many stages.
  virtual void use_cuts(const std::string& /*cuts*/) {}
  //! Decides where the stages begin; UsageError names the most there can be.
  virtual void cut(int stages) = 0;
  //! After `cut`: whether the parameters can be sharded over so many tensor-parallel ranks. UsageError says
  //! why not.
  virtual void check_tensor_ranks(int ranks) const;
  //! Before stages are asked for: their parameters are to be cut over these ranks. UsageError where that
  //! cannot be.
  virtual void spread(const Group& tensors);
  //! A stage with its first values.
  virtual std::shared_ptr<StageModule> stage(int stage) = 0;
  //! Training or evaluation, of all stages that were given.
  virtual void set_training(bool on) = 0;
  virtual std::vector<SkipValue> skips() const = 0;
  virtual std::vector<SharedParameter> shared() const = 0;
  //! What the user should know of how it was spread.
  virtual std::vector<std::string> remarks() const { return {}; }
  //! For the stages that it is cut into now.
  virtual ModelState state() const { return {}; }
  //! Parameters and buffers of the whole model as tensors without memory, to compare with a checkpoint before
  //! ranks start; empty where that cannot be known.
  virtual std::vector<Piece> whole_state() const { return {}; }
  virtual LossFunction loss() const = 0;
  //! What the loss is a mean of; the run's losses and gradients are that mean over the whole batch, over all
  //! microbatches, accumulated parts and replicas. A sum is not supported.
  virtual LossReduction reduction() const { return LossReduction::mean(); }
  //! One line: `GPT, 4 layers of width 128, 0.8 M parameters`.
  virtual std::string describe() const = 0;
  //! Whether microbatches of so many rows can be run; UsageError says which can.
  virtual void check_rows(const std::vector<std::int64_t>& rows) const = 0;
};

std::unique_ptr<Model> gpt_model(const models::GptOptions& options, std::uint64_t seed);

struct ArchiveOptions {
  std::string file;   //!< a .pt2
  SplitPoints split;  //!< empty: balanced
  BalanceKind balance = BalanceKind::Parameters;
  LossKind loss = LossKind::CrossEntropy;
  std::string loss_output{};   //!< empty: `logits`, else the first
  ParallelPlan tensor_plan{};  //!< of tensor parallelism; empty: found in the graph
};

//! An exported model. Its inputs' names are those that the data must have.
struct ArchiveModel {
  std::unique_ptr<Model> model;
  std::vector<std::string> positional;
  std::vector<std::string> keywords;
  std::map<std::string, at::ScalarType> dtypes;  //!< of the inputs, by name
  std::string loss_output;                       //!< the output that the loss is of: `output.logits`
};
ArchiveModel archive_model(const ArchiveOptions& options);

}  // namespace penstock::train
