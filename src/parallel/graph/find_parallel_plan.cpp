// Follows the output of each layer through operators that preserve sharding, to the layers that read it.
#include "base/text.h"
#include "parallel/graph/require_parallel_plan.h"
#include "parallel/graph/weights.h"

#include <penstock/base/error.h>
#include <penstock/graph/ir.h>
#include <penstock/parallel/find_parallel_plan.h>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>

namespace penstock::parallel {
namespace {

//! The layers that the output of a layer reaches.
struct Reach {
  std::set<std::size_t> layers;  //!< by node
  std::string obstacle;          //!< why sharding does not propagate to them; empty if it does
};

using Readers = std::multimap<graph::ValueId, std::size_t>;

bool keeps_shape(const graph::Node& node, const std::string& name) {
  static const std::set<std::string> known = {"aten::dropout",
                                              "aten::native_dropout",
                                              "aten::contiguous",
                                              "aten::clone",
                                              "aten::to.dtype",
                                              "aten::to.dtype_layout",
                                              "aten::_to_copy",
                                              "aten::type_as",
                                              "aten::alias",
                                              "aten::silu",
                                              "aten::gelu",
                                              "aten::relu",
                                              "aten::softmax.int",
                                              "aten::_softmax",
                                              "aten::scaled_dot_product_attention",
                                              "aten::matmul",
                                              "aten::bmm",
                                              "aten::baddbmm",
                                              "aten::cat",
                                              "aten::masked_fill.Scalar"};
  return known.contains(name) || (node.op && node.op->hasTag(at::Tag::pointwise));
}

bool reorders(const std::string& name) {
  static const std::set<std::string> known = {"aten::transpose.int", "aten::permute", "aten::expand",
                                              "aten::unsqueeze", "aten::squeeze.dim"};
  return known.contains(name);
}

bool reshapes(const std::string& name) {
  static const std::set<std::string> known = {"aten::view", "aten::reshape", "aten::_unsafe_view",
                                              "aten::flatten.using_ints", "aten::unflatten.int"};
  return known.contains(name);
}

bool takes_parts(const std::string& name) {
  static const std::set<std::string> known = {"aten::slice.Tensor", "aten::split.Tensor",
                                              "aten::split_with_sizes", "aten::chunk", "aten::narrow"};
  return known.contains(name);
}

class Search {
 public:
  Search(const graph::Graph& graph, const std::vector<WeightUse>& uses, std::int64_t ranks)
      : graph_(graph), ranks_(ranks) {
    for (std::size_t i = 0; i < graph.nodes.size(); ++i)
      for_each_read(graph.nodes[i], [&](graph::ValueId id) { readers_.emplace(id, i); });
    for (const graph::Arg& output : graph.outputs)
      for_each_value(output, [&](graph::ValueId id) { given_.insert(id); });
    for (const graph::Mutation& mutation : graph.mutations) given_.insert(mutation.from);
    for (const WeightUse& use : uses)
      if (use.kind == WeightUse::Kind::Linear) layers_[use.node] = &use;
  }

  Reach from(const WeightUse& layer) const {
    Reach reach;
    const std::int64_t width = last_size(layer.output).value_or(0);
    if (width < ranks_) reach.obstacle = "it has fewer outputs than there are ranks";
    std::vector<graph::ValueId> open{layer.output};
    std::set<graph::ValueId> seen{layer.output};
    while (!open.empty() && reach.obstacle.empty()) {
      const graph::ValueId id = open.back();
      open.pop_back();
      if (given_.contains(id)) reach.obstacle = "its output is an output of the model";
      const auto [begin, end] = readers_.equal_range(id);
      for (auto it = begin; it != end && reach.obstacle.empty(); ++it) {
        const graph::Node& node = graph_.nodes[it->second];
        const auto found = layers_.find(it->second);
        if (found != layers_.end()) {
          if (found->second->input == id) reach.layers.insert(it->second);
          if (found->second->input == id) continue;
        }
        reach.obstacle = obstacle(node, id, width);
        for_each_result(node, [&](graph::ValueId next) {
          if (graph_.value(next).type == graph::ValueType::Tensor && seen.insert(next).second)
            open.push_back(next);
        });
      }
    }
    return reach;
  }

 private:
  std::optional<std::int64_t> size_at(graph::ValueId id, std::size_t from_end) const {
    const auto& meta = graph_.value(id).meta;
    if (!meta || meta->sizes.size() <= from_end) return std::nullopt;
    return meta->sizes[meta->sizes.size() - 1 - from_end].size;
  }
  std::optional<std::int64_t> last_size(graph::ValueId id) const { return size_at(id, 0); }

  //! Why a node does not preserve the sharding of its input; empty if it does.
  std::string obstacle(const graph::Node& node, graph::ValueId id, std::int64_t width) const {
    const std::string name = node.name();
    if (node.kind == graph::Node::Kind::Op && (keeps_shape(node, name) || reorders(name))) return {};
    if (reshapes(name)) return reshape_obstacle(node, id);
    if (takes_parts(name)) {
      return last_size(id) == width ? "its outputs are split by " + name + ", not by heads" : "";
    }
    return "its output is read by " + name;
  }

  std::string reshape_obstacle(const graph::Node& node, graph::ValueId id) const {
    const graph::ValueId out = node.results[0].ids[0];
    const auto last = last_size(id), now = last_size(out);
    if (!last || !now) return "sizes are unknown at " + node.name();
    if (last == now) return {};
    const auto heads = size_at(out, 1), before = size_at(id, 1);
    const auto dims = [&](graph::ValueId value) { return graph_.value(value).meta->sizes.size(); };
    if (dims(out) == dims(id) + 1 && heads && *heads * *now == *last) {
      if (*heads % ranks_ == 0) return {};
      return str_cat(*heads, " heads cannot be divided among ", ranks_, " ranks");
    }
    if (dims(out) + 1 == dims(id) && before && *before * *last == *now) return {};
    return "its outputs are split by " + node.name() + ", not by heads";
  }

  const graph::Graph& graph_;
  std::int64_t ranks_;
  Readers readers_;
  std::set<graph::ValueId> given_;
  std::map<std::size_t, const WeightUse*> layers_;
};

std::string path_of(const graph::Graph& graph, const WeightUse& use) {
  return parent_path(graph.slots[use.slot].names[0]);
}

//! Why a layer cannot be sharded, independent of the layers that follow.
std::string layer_obstacle(const graph::Graph& graph, const std::vector<WeightUse>& uses,
                           const WeightUse& layer) {
  for (const WeightUse& other : uses) {
    if (other.node == layer.node) continue;
    if (other.slot == layer.slot) return "its weight is used more than once";
    if (path_of(graph, other) == path_of(graph, layer)) return "its module has several weights";
  }
  return {};
}

}  // namespace

FoundPlan find_parallel_plan(const graph::Graph& graph, std::int64_t ranks) {
  const std::vector<WeightUse> uses = weight_uses(graph);
  const Search search(graph, uses, ranks);
  std::map<std::size_t, const WeightUse*> layers;
  std::map<std::size_t, Reach> reaches;
  std::map<std::size_t, std::vector<std::size_t>> sources;  // by the layer that reads them
  for (const WeightUse& use : uses) {
    if (use.kind != WeightUse::Kind::Linear) continue;
    layers[use.node] = &use;
    Reach reach = search.from(use);
    if (const std::string obstacle = layer_obstacle(graph, uses, use); !obstacle.empty())
      reach.obstacle = obstacle;
    if (reach.obstacle.empty() && reach.layers.size() != 1)
      reach.obstacle = str_cat("its output reaches ", reach.layers.size(), " layers");
    for (const std::size_t to : reach.layers) sources[to].push_back(use.node);
    reaches[use.node] = std::move(reach);
  }
  FoundPlan found;
  std::set<std::size_t> taken;
  for (const auto& [to, from] : sources) {
    const auto stays = [&](std::size_t node) {
      return taken.contains(node) || !reaches.at(node).obstacle.empty();
    };
    if (std::any_of(from.begin(), from.end(), stays)) continue;
    if (!layer_obstacle(graph, uses, *layers.at(to)).empty()) continue;
    std::vector<std::string> names;
    for (const std::size_t node : from) {
      names.push_back(path_of(graph, *layers.at(node)));
      found.plan.emplace_back(names.back(), ColwiseParallel());
      taken.insert(node);
    }
    const std::string end = path_of(graph, *layers.at(to));
    found.plan.emplace_back(end, RowwiseParallel());
    taken.insert(to);
    found.pairs.push_back(join(names, ", ") + " by columns, " + end + " by rows");
  }
  for (const auto& [node, use] : layers) {
    if (taken.contains(node)) continue;
    const std::string& why = reaches.at(node).obstacle;
    found.not_sharded.push_back(path_of(graph, *use) + ": " +
                                (why.empty() ? "the layer that follows cannot be sharded with it" : why));
  }
  return found;
}

FoundPlan require_parallel_plan(const graph::Graph& graph, std::int64_t ranks, const std::string& hint) {
  FoundPlan found = find_parallel_plan(graph, ranks);
  if (!found.plan.empty()) return found;
  constexpr std::size_t shown = 3;  // the others repeat these reasons
  if (found.not_sharded.size() > shown) {
    found.not_sharded.resize(shown);
    found.not_sharded.emplace_back("…");
  }
  throw UsageError(str_cat("the model has no layers that ", ranks, " tensor-parallel ranks could share",
                           (found.not_sharded.empty() ? "" : " (" + join(found.not_sharded, "; ") + ")")),
                   {}, hint);
}

}  // namespace penstock::parallel
