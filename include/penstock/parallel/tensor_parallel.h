// Tensor parallelism: a plan says how the parameters of modules are cut over one axis of a mesh, and the
// model runs as before. A cut parameter brings its operator's communication with it (docs/adr/0012).
#pragma once

#include <penstock/tensor/dtensor.h>

#include <memory>
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
//! placed as `given` says (replicated where it says nothing), and each is moved to where `wanted` says.
struct PrepareModuleInput {
  std::vector<std::optional<AxisPlacement>> wanted;
  std::vector<std::optional<AxisPlacement>> given{};
};

//! The result of a call of the module is moved, and given as this rank's plain part if asked for.
struct PrepareModuleOutput {
  AxisPlacement wanted;
  bool use_local_output = false;
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

class HookedModule;

//! Keeps what the Prepare styles attached to calls of modules; without them it may be dropped.
class Parallelized {
 public:
  Parallelized();
  Parallelized(Parallelized&&) noexcept;
  Parallelized& operator=(Parallelized&&) noexcept;
  ~Parallelized();

  std::vector<HookedModule> hooks;
};

//! Cuts the module's parameters over a mesh of one axis. Values are those of the mesh's first rank. What no
//! path names stays as it is: a plain parameter counts as replicated, and its gradient is whole on every
//! rank. UsageError for paths that fit no module, styles that do not fit theirs, and tied parameters that are
//! cut twice differently.
Parallelized parallelize_module(torch::nn::Module& module, const DeviceMesh& mesh, const ParallelPlan& plan);

//! What a path is that fits no module: a mistake, or one of another stage of the model that the plan is for.
enum class UnknownPath { Refuse, PassOver };

//! The same for a graph, captured or imported, in place: modules are the paths of its operators and
//! parameters. What a weight is follows from the operators that read it, so that layers which are no
//! torch::nn::Linear are cut too. Prepare styles act where tensors enter and leave the operators of a module
//! (an empty path: where they enter and leave the graph); arguments count in the order in which they are
//! first read, without parameters and buffers.
void parallelize_module(GraphModule& module, const DeviceMesh& mesh, const ParallelPlan& plan,
                        UnknownPath unknown = UnknownPath::Refuse);

//! UsageError for a path that fits no module of the graph; for plans whose stages pass unknown ones over.
void check_paths(const Graph& graph, const ParallelPlan& plan);

}  // namespace penstock
