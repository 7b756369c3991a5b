// Tensor parallelism: a plan says how the parameters of modules are sharded over one mesh axis. The forward
// pass does not change: operators on sharded parameters communicate as needed (docs/adr/0009).
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

namespace penstock::graph {
class GraphModule;
struct Graph;
}  // namespace penstock::graph

namespace penstock::parallel {

//! Shards the outputs of a linear layer (weight and bias Shard(0)) or the features of an embedding (weight
//! Shard(1)).
struct ColwiseParallel {};

//! Shards the inputs of a linear layer (weight Shard(1), bias replicated) or the vocabulary of an embedding
//! (weight Shard(0)). The output is partial until it is used.
struct RowwiseParallel {};

//! For norms and other modules that compute row by row: activations are sharded along `dim`, parameters are
//! replicated. The input is redistributed to Shard(dim).
struct SequenceParallel {
  std::int64_t dim = 1;
};

//! Shards the named parameters as given. For custom modules (ExchangeableParameters) and those of libtorch.
struct DistributeParameters {
  std::vector<std::pair<std::string, tensor::AxisPlacement>> parameters;
};

//! Redistributes the tensor arguments of `ps::call(module, …)` to `desired`. A plain argument is assumed to
//! have the placement in `assumed`, or to be replicated if there is none. Each list has one entry per
//! argument; an empty entry leaves an argument unchanged and is required for non-tensors. `assumed` may be
//! empty. The call throws UsageError if the number of arguments differs.
struct PrepareModuleInput {
  std::vector<std::optional<tensor::AxisPlacement>> desired;
  std::vector<std::optional<tensor::AxisPlacement>> assumed{};
};

//! Placements of the tensors in a result: one for all of them, or one per tensor (empty: leave unchanged).
class ResultPlacements {
 public:
  ResultPlacements() = default;
  ResultPlacements(tensor::AxisPlacement all) : all_(all) {}  // NOLINT: implicit by design
  ResultPlacements(tensor::Replicate all) : all_(all) {}      // NOLINT
  ResultPlacements(tensor::Shard all) : all_(all) {}          // NOLINT
  ResultPlacements(tensor::Partial all) : all_(all) {}        // NOLINT
  // NOLINTNEXTLINE
  ResultPlacements(std::vector<std::optional<tensor::AxisPlacement>> each) : each_(std::move(each)) {}
  ResultPlacements(std::initializer_list<std::optional<tensor::AxisPlacement>> each) : each_(each) {}

  bool empty() const { return !all_ && !each_; }
  //! The required number of tensors; empty if any number is allowed.
  std::optional<std::size_t> count() const { return each_ ? std::optional(each_->size()) : std::nullopt; }
  std::optional<tensor::AxisPlacement> of(std::size_t index) const {
    return each_ && index < each_->size() ? (*each_)[index] : all_;
  }

 private:
  std::optional<tensor::AxisPlacement> all_;
  std::optional<std::vector<std::optional<tensor::AxisPlacement>>> each_;
};

//! Redistributes the tensors in the result of a call to `desired`; with `use_local_output`, returns their
//! local shards as plain tensors. A plain tensor is assumed to have the placement in `assumed`, or to be
//! replicated if there is none. Results may be tuples, lists or trees. The call throws UsageError if the
//! number of tensors differs from the number of placements.
struct PrepareModuleOutput {
  ResultPlacements desired;
  bool use_local_output = false;
  ResultPlacements assumed{};
};

//! Both PrepareModuleInput and PrepareModuleOutput.
struct PrepareModuleInputOutput {
  PrepareModuleInput input;
  PrepareModuleOutput output;
};

using ParallelStyle = std::variant<ColwiseParallel, RowwiseParallel, SequenceParallel, DistributeParameters,
                                   PrepareModuleInput, PrepareModuleOutput, PrepareModuleInputOutput>;

//! Module paths with a style each: {"blocks.*.up", ColwiseParallel()}. `*` and `?` match within one path
//! component. An empty path is the module itself.
using ParallelPlan = std::vector<std::pair<std::string, ParallelStyle>>;

//! For custom modules that hold handles to their parameters: replaces the parameter with the distributed
//! tensor.
class ExchangeableParameters {
 public:
  virtual ~ExchangeableParameters() = default;
  virtual void exchange_parameter(const std::string& name, const at::Tensor& distributed) = 0;
};

//! Shards the module's parameters over a one-axis mesh, with the values of the mesh's first rank. Parameters
//! that no path matches stay plain: they count as replicated, and every rank has their full gradient. Prepare
//! styles stay attached to a module for its lifetime. Throws UsageError if a path matches no module, a style
//! does not apply to its module, or a tied parameter gets two different placements; the module is then
//! unchanged. An exported module (graph/exported_module.h) is treated like its graph, see below.
void parallelize_module(torch::nn::Module& module, const tensor::DeviceMesh& mesh, const ParallelPlan& plan);

//! How to treat a path that matches no module: as an error, or as a path of another stage of the model.
enum class UnknownPath { Error, Ignore };

//! The same for a captured or imported graph, in place. Modules are the paths of its operators and
//! parameters. The role of a weight follows from the operators that read it, so layers other than
//! torch::nn::Linear are sharded too. Prepare styles apply where tensors enter and leave the operators of a
//! module (for an empty path, the graph). Arguments are numbered in the order in which they are first read,
//! without parameters and buffers; results in the order in which other operators first read them.
void parallelize_module(graph::GraphModule& module, const tensor::DeviceMesh& mesh, const ParallelPlan& plan,
                        UnknownPath unknown = UnknownPath::Error);

//! Throws UsageError if a path matches no module of the graph. For plans whose stages use
//! UnknownPath::Ignore.
void check_paths(const graph::Graph& graph, const ParallelPlan& plan);

}  // namespace penstock::parallel
