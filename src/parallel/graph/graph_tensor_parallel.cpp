// Applies a plan to a graph: replaces parameters in the graph's tensors, and inserts operators at the
// boundaries of modules for Prepare styles.
#include "base/text.h"
#include "parallel/graph/boundaries.h"
#include "parallel/graph/weights.h"
#include "parallel/replica_agreement.h"
#include "parallel/tensor/module_paths.h"
#include "parallel/tensor/prepare.h"
#include "tensor/dispatch/dtensor_impl.h"

#include <penstock/base/error.h>
#include <penstock/graph/graph_module.h>

#include <algorithm>
#include <set>
#include <utility>

namespace penstock::parallel {
namespace {

//! All module paths, including those of parents.
std::vector<std::string> module_paths(const graph::Graph& graph) {
  std::set<std::string> paths;
  const auto add = [&](std::string path) {
    for (; !path.empty(); path = parent_path(path)) paths.insert(path);
  };
  for (const graph::Node& node : graph.nodes) add(node.module);
  for (const graph::Slot& slot : graph.slots)
    for (const std::string& name : slot.names) add(parent_path(name));
  return {paths.begin(), paths.end()};
}

class GraphPlan {
 public:
  GraphPlan(const graph::GraphModule& module, tensor::DeviceMesh mesh, UnknownPath unknown)
      : graph_(module.graph()),
        tensors_(module.tensors()),
        mesh_(std::move(mesh)),
        unknown_(unknown),
        uses_(weight_uses(graph_)) {}

  void apply(const std::string& path, const ParallelStyle& style) {
    path_ = path;
    std::visit([this](const auto& one) { on(one); }, style);
  }

  graph::GraphModule module(const std::optional<c10::Device>& device) && {
    return {std::move(graph_), std::move(tensors_), device};
  }

 private:
  void on(const ColwiseParallel&) { shard_layer("ColwiseParallel", true); }
  void on(const RowwiseParallel&) { shard_layer("RowwiseParallel", false); }

  void on(const SequenceParallel& style) {
    const auto request =
        std::make_shared<tensor::InputRequest>(tensor::InputRequest{{tensor::Shard(style.dim)}});
    const std::vector<std::size_t> slots = parameters();
    for (const std::size_t slot : slots) {
      shard(slot, tensor::Replicate());
      tensor::impl_of(tensors_[slot])->input_request = request;
    }
    if (slots.empty()) enter({{tensor::Shard(style.dim)}}, false);
  }

  void on(const DistributeParameters& style) {
    for (const auto& [name, placement] : style.parameters) {
      const std::string full = path_.empty() ? name : path_ + "." + name;
      const auto has = [&](const graph::Slot& slot) {
        return slot.kind == graph::Slot::Kind::Parameter &&
               std::find(slot.names.begin(), slot.names.end(), full) != slot.names.end();
      };
      const auto it = std::find_if(graph_.slots.begin(), graph_.slots.end(), has);
      if (it == graph_.slots.end())
        throw UsageError("module " + quote(path_) + " has no parameter " + quote(name));
      shard(static_cast<std::size_t>(it - graph_.slots.begin()), placement);
    }
  }

  void on(const PrepareModuleInput& style) { enter(style, true); }

  //! `all`: the style must have one entry per tensor that enters.
  void enter(const PrepareModuleInput& style, bool all) {
    Boundary boundary;
    boundary.entering = style.desired.size();
    if (all) boundary.check_entering = [&](std::size_t count) { check_arguments(style, count, path_); };
    boundary.enter = [style, mesh = mesh_](const at::Tensor& tensor, std::size_t index) {
      return prepared_argument(tensor, index, mesh, style);
    };
    graph_ = with_boundary(std::move(graph_), path_, boundary);
  }

  void on(const PrepareModuleOutput& style) {
    Boundary boundary;
    boundary.check_leaving = [&](std::size_t count) { check_results(style, count, path_); };
    boundary.leave = [style, mesh = mesh_](const at::Tensor& tensor, std::size_t index) {
      return prepared_result(tensor, index, mesh, style);
    };
    graph_ = with_boundary(std::move(graph_), path_, boundary);
  }

  void on(const PrepareModuleInputOutput& style) {
    on(style.input);
    on(style.output);
  }

  //! The module's own parameters, without those of submodules.
  std::vector<std::size_t> parameters() const {
    std::vector<std::size_t> slots;
    for (std::size_t i = 0; i < graph_.slots.size(); ++i) {
      const graph::Slot& slot = graph_.slots[i];
      if (slot.kind != graph::Slot::Kind::Parameter) continue;
      if (std::any_of(slot.names.begin(), slot.names.end(),
                      [&](const std::string& name) { return parent_path(name) == path_; }))
        slots.push_back(i);
    }
    return slots;
  }

  //! How a weight is used: by the module's own operators if possible, else by any operator.
  const WeightUse* use_of(std::size_t slot) const {
    const WeightUse* other = nullptr;
    for (const WeightUse& use : uses_) {
      if (use.slot != slot) continue;
      if (is_inside(use.module, path_)) return &use;
      other = &use;
    }
    return other;
  }

  void shard_layer(const char* style, bool by_outputs) {
    const WeightUse* weight = nullptr;
    const std::vector<std::size_t> slots = parameters();
    for (const std::size_t slot : slots) {
      const WeightUse* use = use_of(slot);
      if (use && weight) {
        throw UsageError("module " + quote(path_) + " has several weights, but " + style + " shards one", {},
                         "list each with DistributeParameters");
      }
      if (use) weight = use;
    }
    if (!weight && unknown_ == UnknownPath::Ignore) return;  // used in another stage
    if (!weight) {
      throw UsageError(std::string(style) + " does not fit module " + quote(path_), {},
                       "it applies to linear layers and embeddings; list other parameters with "
                       "DistributeParameters");
    }
    shard(weight->slot, tensor::Shard(by_outputs ? weight->out_dim : weight->in_dim));
    if (weight->kind == WeightUse::Kind::Table) return;
    for (const std::size_t slot : slots) {
      if (slot == weight->slot || tensors_[slot].dim() != 1) continue;
      shard(slot, by_outputs ? tensor::AxisPlacement(tensor::Shard(0))
                             : tensor::AxisPlacement(tensor::Replicate()));
    }
  }

  void shard(std::size_t slot, const tensor::AxisPlacement& placement) {
    at::Tensor& tensor = tensors_[slot];
    if (!tensor::is_dtensor(tensor)) {
      tensor = distribute_parameter(tensor, mesh_, {placement});
      return;
    }
    if (tensor::placements_of(tensor) == tensor::Placements{placement}) return;
    throw UsageError("parameter " + quote(graph_.slots[slot].names[0]) + " would be sharded twice, as " +
                         to_string(tensor::placements_of(tensor)) + " and, for module " + quote(path_) +
                         ", as " + to_string(placement),
                     {},
                     "list each module in one entry of the plan; tied parameters need the same placement");
  }

  graph::Graph graph_;
  std::vector<at::Tensor> tensors_;
  tensor::DeviceMesh mesh_;
  UnknownPath unknown_;
  std::vector<WeightUse> uses_;
  std::string path_;
};

}  // namespace

void check_paths(const graph::Graph& graph, const ParallelPlan& plan) {
  const std::vector<std::string> paths = module_paths(graph);
  for (const auto& [pattern, style] : plan) {
    const auto fits = [&wanted = pattern](const std::string& path) { return path_fits(wanted, path); };
    if (!pattern.empty() && std::none_of(paths.begin(), paths.end(), fits)) refuse_path(pattern, paths);
  }
}

void parallelize_module(graph::GraphModule& module, const tensor::DeviceMesh& mesh, const ParallelPlan& plan,
                        UnknownPath unknown) {
  check_one_axis(mesh);
  if (module.device()) require_own_device(mesh.group(0), *module.device());
  const std::vector<std::string> paths = module_paths(module.graph());
  GraphPlan made(module, mesh, unknown);
  for (const auto& [pattern, style] : plan) {
    bool fits = pattern.empty();
    if (fits) made.apply(pattern, style);
    for (const std::string& path : paths) {
      if (!path_fits(pattern, path)) continue;
      made.apply(path, style);
      fits = true;
    }
    if (!fits && unknown == UnknownPath::Error) refuse_path(pattern, paths);
  }
  const bool training = module.is_training();
  module = std::move(made).module(module.device());
  module.train(training);
}

}  // namespace penstock::parallel
