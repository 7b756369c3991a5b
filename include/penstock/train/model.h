// The interface between trainer and model. A Model chooses where it is split; the StagedModel of that split
// builds the stages. A Model is immutable, so its methods may be called in any order.
#pragma once

#include <penstock/base/ids.h>
#include <penstock/checkpoint/piece.h>
#include <penstock/comm/group.h>
#include <penstock/graph/pt2.h>
#include <penstock/graph/split.h>
#include <penstock/models/gpt_options.h>
#include <penstock/parallel/tensor_parallel.h>
#include <penstock/pipe/pipe.h>
#include <penstock/runtime/pipeline.h>
#include <penstock/train/data.h>
#include <penstock/train/lora.h>
#include <penstock/train/options.h>

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::train {

//! Where a model is split into stages: at nodes of the graph of an exported model, at layers of the GPT. All
//! ranks of a run use the same split.
struct ModelSplit {
  graph::SplitPositions positions{};  //!< where stages 1, 2, … start, ascending; stage 0 starts at 0

  int num_stages() const { return static_cast<int>(positions.size()) + 1; }
  friend bool operator==(const ModelSplit&, const ModelSplit&) = default;
};

//! The positions, separated by spaces: the format of checkpoints.
std::string to_string(const ModelSplit& split);
//! Throws ParseError if the text is not a list of ascending positions.
ModelSplit parse_model_split(std::string_view text);

//! How the tensors of the stages differ from the state_dict of the model. Checkpoints contain exactly the
//! state_dict, without the base of adapters.
struct ModelState {
  //! Other names of tied tensors, by the name in the stages.
  std::map<std::string, std::vector<std::string>> aliases{};
  std::set<std::string> transient{};        //!< buffers that are not in the state_dict
  std::vector<checkpoint::Piece> unused{};  //!< tensors that no stage uses
  //! With LoRA, the tensors that do not change: checkpoints leave them out.
  std::set<std::string> base{};
  std::set<std::string> adapters{};  //!< with LoRA, the parameters that it adds to the model
  //! The buffers that a training step changes, such as running statistics, by their names in the stages.
  //! After each step, replicas take them from the first replica. nullopt: every buffer may change.
  std::optional<std::set<std::string>> changing_buffers{};
};

//! A model that is split into stages. Weights are loaded or initialized when a stage is built.
class StagedModel {
 public:
  virtual ~StagedModel() = default;

  //! Builds a stage with initial parameter values. With a tensor-parallel group, shards its parameters over
  //! the ranks of the group; all of them must build the stage. Throws UsageError if this is not possible.
  virtual std::shared_ptr<runtime::StageModule> stage(
      StageId stage, const std::optional<comm::Group>& tensor_group = std::nullopt) = 0;
  //! Throws UsageError if the parameters cannot be sharded over this number of tensor-parallel ranks. The
  //! default refuses every number above 1.
  virtual void check_tensor_ranks(int ranks) const;
  //! Messages for the user about how the parameters are sharded over this number of tensor-parallel ranks.
  virtual std::vector<std::string> sharding_messages(int /*ranks*/) const { return {}; }

  //! Recomputes the activations of the modules that the patterns select (ParallelOptions::recompute_modules)
  //! in stages that are built afterwards. Throws UsageError if a pattern selects none or if the model cannot
  //! recompute single modules. The default refuses every pattern.
  virtual void recompute_modules(const std::vector<std::string>& patterns);

  //! The values that go to a later stage than the next one.
  virtual std::vector<runtime::SkipValue> skips() const { return {}; }
  //! The parameters that several stages hold.
  virtual std::vector<runtime::SharedParameter> shared() const { return {}; }
  //! How the tensors of the stages differ from the state_dict of the model.
  virtual ModelState state() const { return {}; }
};

//! A model that can be trained. Derive from it to train your own with `run`.
class Model {
 public:
  virtual ~Model() = default;

  //! Describes the model in one line.
  virtual std::string summary() const = 0;

  //! Returns the split into this number of stages. The result is the same on every rank. Throws UsageError,
  //! with the maximum, if the model cannot be split into that many stages.
  virtual ModelSplit split(int stages) const = 0;
  //! Whether the user has chosen the positions. A run then uses `split` and never a measured split or that of
  //! a checkpoint.
  virtual bool has_given_split() const { return false; }
  //! Returns the split that balances the times measured on one microbatch, on the device of its tensors;
  //! nullopt if the model is not balanced by measured times. Times differ between ranks, so the run measures
  //! on one rank and stores the result in its checkpoints.
  virtual std::optional<ModelSplit> measured_split(int /*stages*/, const Batch& /*microbatch*/) const {
    return std::nullopt;
  }
  //! Splits the model. Every call returns a new object, whose stages share no tensors with those of other
  //! calls.
  virtual std::unique_ptr<StagedModel> split_at(const ModelSplit& split) const = 0;

  //! The loss of one microbatch, from the output of the last stage and the target.
  virtual runtime::LossFunction loss() const = 0;
  //! What the loss averages over. The losses and gradients of a run are the mean over the complete batch: all
  //! microbatches, accumulated parts and replicas. Sums are not supported.
  virtual runtime::LossReduction reduction() const { return runtime::LossReduction::mean(); }
  //! Whether the loss is a mean over all rows of a microbatch, from which padding rows cannot be left out.
  //! The data must then serve full batches, and validation uses only full batches.
  virtual bool needs_full_batches() const { return false; }
  //! Throws UsageError if the model cannot run microbatches with these numbers of rows.
  virtual void check_rows(const std::vector<std::int64_t>& /*rows*/) const {}
  //! Returns all parameters and buffers of the state_dict as tensors without memory, to compare with a
  //! checkpoint before ranks start; empty if unknown.
  virtual std::vector<checkpoint::Piece> state_metadata() const { return {}; }
  //! The adapters of a model with LoRA, whose parameters are a part of the state_dict; null without LoRA.
  virtual const Lora* lora() const { return nullptr; }
  //! Reads a parameter or buffer by its name, with the value that the stages start from: the base of
  //! adapters. Random initial values are those of `seed` if it is given. Undefined if unknown. Only called
  //! for adapters: those of this model, and those of initial weights.
  virtual at::Tensor read_base(const std::string& /*name*/, std::optional<std::uint64_t> /*seed*/) const {
    return {};
  }
};

//! Options of a loss, with the meaning that they have in PyTorch.
struct LossOptions {
  double label_smoothing = 0;           //!< CrossEntropy
  std::vector<double> class_weights{};  //!< CrossEntropy and Bce: one per class; empty: all 1
  //! CrossEntropy and Bce: the dim of the classes in the output, at least 1; default: the last one.
  std::optional<std::int64_t> class_dim{};
};

//! The built-in GPT, with initial values that depend on the seed. If the data has a keyword argument
//! `positions`, every sequence consists of documents (GptImpl::forward). Its loss is the cross entropy of the
//! next tokens, whose classes are the vocabulary. Throws UsageError if a pattern of `lora` selects no layer,
//! or if the options of the loss are invalid. Without points of `split` (the modules `token`, `blocks.0`, …,
//! `norm`), the stages are balanced.
std::unique_ptr<Model> gpt_model(const models::GptOptions& options, std::uint64_t seed,
                                 const std::optional<LoraOptions>& lora = std::nullopt,
                                 const LossOptions& loss = {}, const pipe::SplitPoints& split = {});

//! Which exported model to train, and how.
struct ArchiveOptions {
  std::filesystem::path file{};  //!< a .pt2 archive
  pipe::SplitPoints split{};     //!< empty: balanced
  //! Where stages 1, 2, … start, instead of `split`: indices of operators of the graph, with adapters.
  graph::SplitPositions positions{};
  pipe::BalanceBy balance = pipe::BalanceBy::Parameters;
  LossKind loss = LossKind::CrossEntropy;
  LossOptions loss_options{};
  std::optional<std::string> loss_output{};  //!< by default `logits` if it exists, else the first output
  parallel::ParallelPlan tensor_plan{};      //!< tensor-parallel plan; empty: derived from the graph
  //! The output `loss_output` (by default `loss` if it exists) is the loss, and the data has no target;
  //! `loss` is ignored.
  bool computes_loss = false;
  LossMean loss_mean = LossMean::Auto;  //!< with `computes_loss`: what the loss is a mean over
  std::optional<std::string> labels{};  //!< the input with the labels of this mean; default: `labels`
  std::optional<LoraOptions> lora{};    //!< trains adapters instead of the parameters of the archive
  //! Converts a model whose parameters are bfloat16 or float16: tensors, inputs and operators with the dtype
  //! of such parameters get this one. Not with `lora`.
  std::optional<at::ScalarType> dtype{};
};

//! An exported model. The data must provide a tensor for each of its inputs that is not a constant.
struct ArchiveModel {
  std::unique_ptr<Model> model;
  std::shared_ptr<const graph::Pt2Archive> archive;  //!< the open archive, which `model` shares
  std::shared_ptr<const graph::Graph> graph;         //!< of the model: that of the archive, with adapters
  std::vector<std::string> positional;
  std::vector<std::string> keywords;
  std::map<std::string, c10::IValue> constants;  //!< the inputs that are constants of the export, by name
  std::map<std::string, at::ScalarType> dtypes;  //!< dtypes of the inputs, by name
  std::string loss_output;                       //!< the output that the loss reads: `output.logits`
  bool computes_loss = false;                    //!< ArchiveOptions::computes_loss
  LossMean loss_mean = LossMean::Rows;           //!< with `computes_loss`; never Auto
  std::optional<LabelInput> labels{};            //!< if the model computes a mean over labels
};
//! Opens the archive, which is parsed only once. Throws UsageError if the options of the loss or of LoRA do
//! not apply to it.
ArchiveModel archive_model(const ArchiveOptions& options);

}  // namespace penstock::train
