// From each layer forward through what keeps a cut, to the layers that it ends in.
#include "parallel/graph_weights.h"

#include <penstock/base/error.h>
#include <penstock/base/text.h>
#include <penstock/graph/ir.h>
#include <penstock/parallel/find_plan.h>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>

namespace penstock {
namespace {

//! Where a layer's output goes.
struct Reach {
  std::set<std::size_t> layers;  //!< by their node
  std::string obstacle;          //!< why the cut does not hold up to there; empty: it does
};

using Readers = std::multimap<ValueId, std::size_t>;

bool keeps_shape(const Node& node, const std::string& name) {
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
  Search(const Graph& graph, const std::vector<WeightUse>& uses, std::int64_t ranks)
      : graph_(graph), ranks_(ranks) {
    for (std::size_t i = 0; i < graph.nodes.size(); ++i)
      for_each_read(graph.nodes[i], [&](ValueId id) { readers_.emplace(id, i); });
    for (const Arg& output : graph.outputs) for_each_value(output, [&](ValueId id) { given_.insert(id); });
    for (const Mutation& mutation : graph.mutations) given_.insert(mutation.from);
    for (const WeightUse& use : uses)
      if (use.kind == WeightUse::Kind::Linear) layers_[use.node] = &use;
  }

  Reach from(const WeightUse& layer) const {
    Reach reach;
    const std::int64_t width = last_size(layer.output).value_or(0);
    if (width < ranks_) reach.obstacle = "it has fewer outputs than there are ranks";
    std::vector<ValueId> open{layer.output};
    std::set<ValueId> seen{layer.output};
    while (!open.empty() && reach.obstacle.empty()) {
      const ValueId id = open.back();
      open.pop_back();
      if (given_.contains(id)) reach.obstacle = "its output leaves the model";
      const auto [begin, end] = readers_.equal_range(id);
      for (auto it = begin; it != end && reach.obstacle.empty(); ++it) {
        const Node& node = graph_.nodes[it->second];
        const auto found = layers_.find(it->second);
        if (found != layers_.end()) {
          if (found->second->input == id) reach.layers.insert(it->second);
          if (found->second->input == id) continue;
        }
        reach.obstacle = obstacle(node, id, width);
        for_each_result(node, [&](ValueId next) {
          if (graph_.value(next).type == ValueType::Tensor && seen.insert(next).second) open.push_back(next);
        });
      }
    }
    return reach;
  }

 private:
  std::optional<std::int64_t> size_at(ValueId id, std::size_t from_end) const {
    const auto& meta = graph_.value(id).meta;
    if (!meta || meta->sizes.size() <= from_end) return std::nullopt;
    return meta->sizes[meta->sizes.size() - 1 - from_end].size;
  }
  std::optional<std::int64_t> last_size(ValueId id) const { return size_at(id, 0); }

  //! Why a node does not keep the cut of what it reads; empty if it does.
  std::string obstacle(const Node& node, ValueId id, std::int64_t width) const {
    const std::string name = node.name();
    if (node.kind == Node::Kind::Op && (keeps_shape(node, name) || reorders(name))) return {};
    if (reshapes(name)) return reshape_obstacle(node, id);
    if (takes_parts(name)) {
      return last_size(id) == width ? "its outputs are divided by " + name + ", and not by heads" : "";
    }
    return "its output goes into " + name;
  }

  std::string reshape_obstacle(const Node& node, ValueId id) const {
    const ValueId out = node.results[0].ids[0];
    const auto last = last_size(id), now = last_size(out);
    if (!last || !now) return "sizes are not known at " + node.name();
    if (last == now) return {};
    const auto heads = size_at(out, 1), before = size_at(id, 1);
    const auto dims = [&](ValueId value) { return graph_.value(value).meta->sizes.size(); };
    if (dims(out) == dims(id) + 1 && heads && *heads * *now == *last) {
      if (*heads % ranks_ == 0) return {};
      return std::to_string(*heads) + " heads cannot be shared by " + std::to_string(ranks_) + " ranks";
    }
    if (dims(out) + 1 == dims(id) && before && *before * *last == *now) return {};
    return "its outputs are divided by " + node.name() + ", and not by heads";
  }

  const Graph& graph_;
  std::int64_t ranks_;
  Readers readers_;
  std::set<ValueId> given_;
  std::map<std::size_t, const WeightUse*> layers_;
};

std::string path_of(const Graph& graph, const WeightUse& use) {
  return parent_path(graph.slots[use.slot].names[0]);
}

//! Why a layer cannot be cut whatever it leads to.
std::string own_obstacle(const Graph& graph, const std::vector<WeightUse>& uses, const WeightUse& layer) {
  for (const WeightUse& other : uses) {
    if (other.node == layer.node) continue;
    if (other.slot == layer.slot) return "its weight is used several times";
    if (path_of(graph, other) == path_of(graph, layer)) return "its module has several weights";
  }
  return {};
}

}  // namespace

FoundPlan find_parallel_plan(const Graph& graph, std::int64_t ranks) {
  const std::vector<WeightUse> uses = weight_uses(graph);
  const Search search(graph, uses, ranks);
  std::map<std::size_t, const WeightUse*> layers;
  std::map<std::size_t, Reach> reaches;
  std::map<std::size_t, std::vector<std::size_t>> sources;  // by the layer that they end in
  for (const WeightUse& use : uses) {
    if (use.kind != WeightUse::Kind::Linear) continue;
    layers[use.node] = &use;
    Reach reach = search.from(use);
    if (const std::string own = own_obstacle(graph, uses, use); !own.empty()) reach.obstacle = own;
    if (reach.obstacle.empty() && reach.layers.size() != 1)
      reach.obstacle = "its output goes into " + std::to_string(reach.layers.size()) + " layers";
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
    if (!own_obstacle(graph, uses, *layers.at(to)).empty()) continue;
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
    found.whole.push_back(path_of(graph, *use) + ": " +
                          (why.empty() ? "the layer that it leads to cannot be cut with it" : why));
  }
  return found;
}

FoundPlan require_parallel_plan(const Graph& graph, std::int64_t ranks, const std::string& hint) {
  FoundPlan found = find_parallel_plan(graph, ranks);
  if (!found.plan.empty()) return found;
  constexpr std::size_t shown = 3;  // the others have the same few reasons
  if (found.whole.size() > shown) {
    found.whole.resize(shown);
    found.whole.emplace_back("…");
  }
  throw UsageError("no layers of this model were found that " + std::to_string(ranks) +
                       " tensor-parallel ranks could share" +
                       (found.whole.empty() ? "" : " (" + join(found.whole, "; ") + ")"),
                   {}, hint);
}

}  // namespace penstock
