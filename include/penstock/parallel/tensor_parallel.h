// Tensor parallelism: a plan says how the parameters of modules are cut over one axis of a mesh, and the
// model runs as before. A cut parameter brings its operator's communication with it (docs/adr/0009).
#pragma once

#include <penstock/tensor/dtensor.h>

#include <initializer_list>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace torch::nn {
class Module;
}

namespace penstock {

class GraphModule;
struct Graph;

//! A linear layer's outputs, or an embedding's features, are cut: weight Shard(0) and bias Shard(0), or table
//! Shard(1).
struct ColwiseParallel {};

//! A linear layer's inputs, or an embedding's vocabulary, are cut: weight Shard(1) and bias whole, or table
//! Shard(0). The output is a partial sum until it is used.
struct RowwiseParallel {};

//! Norms, and whatever else computes row by row, on activations that are cut along `dim`; their parameters
//! are whole. The input is brought there.
struct SequenceParallel {
  std::int64_t dim = 1;
};

//! Parameters by name, each cut as given. For own modules (ExchangeableParameters) and for the stock ones.
struct DistributeParameters {
  std::vector<std::pair<std::string, AxisPlacement>> parameters;
};

//! What a call of the module, `ps::call(module, …)`, does with its tensors. A plain argument is read as being
//! placed as `given` says (replicated where it says nothing), and each is moved to where `wanted` says. The
//! lists have an entry for each argument, nothing for one that stays as it is and for one that is no tensor;
//! UsageError where the call has another number of arguments. `given` may be empty.
struct PrepareModuleInput {
  std::vector<std::optional<AxisPlacement>> wanted;
  std::vector<std::optional<AxisPlacement>> given{};
};

//! Where the tensors of a result are: one placement for all of them, or one for each (nothing: it stays as it
//! is).
class ResultPlacements {
 public:
  ResultPlacements() = default;
  ResultPlacements(AxisPlacement all) : all_(all) {}  // NOLINT: written in place
  ResultPlacements(Replicate all) : all_(all) {}      // NOLINT
  ResultPlacements(Shard all) : all_(all) {}          // NOLINT
  ResultPlacements(Partial all) : all_(all) {}        // NOLINT
  ResultPlacements(std::vector<std::optional<AxisPlacement>> each) : each_(std::move(each)) {}  // NOLINT
  ResultPlacements(std::initializer_list<std::optional<AxisPlacement>> each) : each_(each) {}

  bool empty() const { return !all_ && !each_; }
  //! The number of tensors that it is for, if it says so.
  std::optional<std::size_t> count() const { return each_ ? std::optional(each_->size()) : std::nullopt; }
  std::optional<AxisPlacement> of(std::size_t index) const {
    return each_ && index < each_->size() ? (*each_)[index] : all_;
  }

 private:
  std::optional<AxisPlacement> all_;
  std::optional<std::vector<std::optional<AxisPlacement>>> each_;
};

//! The tensors of a call's result are moved, and given as this rank's plain part if asked for. A plain tensor
//! is read as being placed as `given` says, replicated where it says nothing. Results may be tuples, lists or
//! trees; UsageError where a list of placements is for another number of tensors.
struct PrepareModuleOutput {
  ResultPlacements wanted;
  bool use_local_output = false;
  ResultPlacements given{};
};

struct PrepareModuleInputOutput {
  PrepareModuleInput input;
  PrepareModuleOutput output;
};

using ParallelStyle = std::variant<ColwiseParallel, RowwiseParallel, SequenceParallel, DistributeParameters,
                                   PrepareModuleInput, PrepareModuleOutput, PrepareModuleInputOutput>;

//! Module paths, `*` and `?` within a part between dots, each with a style: {"blocks.*.up",
//! ColwiseParallel()}. An empty path is the module itself.
using ParallelPlan = std::vector<std::pair<std::string, ParallelStyle>>;

//! For own modules that hold handles to their parameters: takes the distributed tensor in place of the
//! parameter.
class ExchangeableParameters {
 public:
  virtual ~ExchangeableParameters() = default;
  virtual void exchange_parameter(const std::string& name, const at::Tensor& distributed) = 0;
};

//! Shards the module's parameters over a mesh of one axis. Values are those of the mesh's first rank. What no
//! path names stays as it is: a plain parameter counts as replicated, and its gradient is whole on every
//! rank. Prepare styles stay on their modules as long as these live. UsageError for paths that fit no module,
//! styles that do not fit theirs, and tied parameters that are sharded twice differently: the module is then
//! as it was.
void parallelize_module(torch::nn::Module& module, const DeviceMesh& mesh, const ParallelPlan& plan);

//! What a path is that fits no module: a mistake, or one of another stage of the model that the plan is for.
enum class UnknownPath { Refuse, PassOver };

//! The same for a graph, captured or imported, in place: modules are the paths of its operators and
//! parameters. What a weight is follows from the operators that read it, so that layers which are no
//! torch::nn::Linear are cut too. Prepare styles act where tensors enter and leave the operators of a module
//! (an empty path: where they enter and leave the graph); arguments count in the order in which they are
//! first read, without parameters and buffers, and results in the order in which others first read them.
void parallelize_module(GraphModule& module, const DeviceMesh& mesh, const ParallelPlan& plan,
                        UnknownPath unknown = UnknownPath::Refuse);

//! UsageError for a path that fits no module of the graph; for plans whose stages pass unknown ones over.
void check_paths(const Graph& graph, const ParallelPlan& plan);

}  // namespace penstock
