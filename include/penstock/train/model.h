// The interface between trainer and model: split the model into stages and build the stages of a rank.
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

//! How the tensors of the stages differ from the state_dict of the model. Checkpoints contain exactly the
//! state_dict.
struct ModelState {
  //! Other names of tied tensors, by the name in the stages.
  std::map<std::string, std::vector<std::string>> aliases{};
  std::set<std::string> transient{};      //!< buffers that are not in the state_dict
  std::vector<checkpoint::Piece> idle{};  //!< tensors that no stage uses
};

class Model {
 public:
  virtual ~Model() = default;

  //! Measures the model on one microbatch and returns the split positions that balance the time of `stages`
  //! stages, as a text for `use_cuts`; empty if the model is not balanced by measured times. One rank
  //! measures for all.
  virtual std::string measured_cuts(int /*stages*/, const Batch& /*microbatch*/) { return {}; }
  //! Sets the split positions that `cut` uses for that number of stages.
  virtual void use_cuts(const std::string& /*cuts*/) {}
  //! Splits the model into stages. Throws UsageError with the maximum if there are too many.
  virtual void cut(int stages) = 0;
  //! Throws UsageError if the parameters cannot be sharded over this number of tensor-parallel ranks. Call
  //! after `cut`.
  virtual void check_tensor_ranks(int ranks) const;
  //! Shards the parameters of all stages over these ranks. Call before `stage`. Throws UsageError if the
  //! parameters cannot be sharded.
  virtual void spread(const comm::Group& tensors);
  //! Builds a stage with initial parameter values.
  virtual std::shared_ptr<runtime::StageModule> stage(int stage) = 0;
  //! Sets training or evaluation mode of all stages built so far.
  virtual void set_training(bool on) = 0;
  virtual std::vector<runtime::SkipValue> skips() const = 0;
  virtual std::vector<runtime::SharedParameter> shared() const = 0;
  //! Messages for the user about how the model is sharded.
  virtual std::vector<std::string> remarks() const { return {}; }
  //! Returns the state for the current split.
  virtual ModelState state() const { return {}; }
  //! Returns all parameters and buffers of the model as tensors without memory, to compare with a checkpoint
  //! before ranks start; empty if unknown.
  virtual std::vector<checkpoint::Piece> whole_state() const { return {}; }
  virtual runtime::LossFunction loss() const = 0;
  //! What the loss averages over. The losses and gradients of a run are the mean over the complete batch: all
  //! microbatches, accumulated parts and replicas. Sums are not supported.
  virtual runtime::LossReduction reduction() const { return runtime::LossReduction::mean(); }
  //! Describes the model in one line.
  virtual std::string describe() const = 0;
  //! Throws UsageError if the model cannot run microbatches with these numbers of rows.
  virtual void check_rows(const std::vector<std::int64_t>& rows) const = 0;
};

std::unique_ptr<Model> gpt_model(const models::GptOptions& options, std::uint64_t seed);

struct ArchiveOptions {
  std::string file;         //!< path of a .pt2 archive
  pipe::SplitPoints split;  //!< empty: balanced
  BalanceKind balance = BalanceKind::Parameters;
  LossKind loss = LossKind::CrossEntropy;
  std::string loss_output{};             //!< empty: `logits` if it exists, else the first output
  parallel::ParallelPlan tensor_plan{};  //!< tensor-parallel plan; empty: derived from the graph
};

//! An exported model. The data must provide a tensor for each of its inputs.
struct ArchiveModel {
  std::unique_ptr<Model> model;
  std::vector<std::string> positional;
  std::vector<std::string> keywords;
  std::map<std::string, at::ScalarType> dtypes;  //!< dtypes of the inputs, by name
  std::string loss_output;                       //!< the output that the loss reads: `output.logits`
};
ArchiveModel archive_model(const ArchiveOptions& options);

}  // namespace penstock::train
