// Splits the graph for a split backward pass. Runs once per backward pass of each microbatch, so it must be
// fast: one traversal, flat arrays.
#include "runtime/backward/backward_graph.h"

#include "runtime/backward/backward_work.h"

#include <c10/util/flat_hash_map.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <typeindex>

namespace penstock::runtime {
namespace {

enum class NodeKind : std::uint8_t { Plain, Deferrable, Split };

bool is_product(std::string_view name) {
  constexpr std::array products = {std::string_view("AddmmBackward0"),
                                   std::string_view("MmBackward0"),
                                   std::string_view("BmmBackward0"),
                                   std::string_view("BaddbmmBackward0"),
                                   std::string_view("AddbmmBackward0"),
                                   std::string_view("AddmvBackward0"),
                                   std::string_view("MvBackward0"),
                                   std::string_view("GroupedMmBackward0"),
                                   std::string_view("LinearBackward0"),
                                   std::string_view("MkldnnLinearBackward0"),
                                   std::string_view("TrilinearBackward0"),
                                   std::string_view("ConvTbcBackward0"),
                                   std::string_view("SparseAddmmBackward0"),
                                   std::string_view("ThnnFusedLstmCellBackward0"),
                                   std::string_view("ThnnFusedGruCellBackward0")};
  if (std::find(products.begin(), products.end(), name) != products.end()) return true;
  return name.ends_with("ConvolutionBackward0") || name.ends_with("ConvolutionOverrideableBackward0") ||
         name.ends_with("ConvolutionTransposeBackward0");
}

NodeKind classify(Node& node) {
  if (dynamic_cast<SplitNode*>(&node) != nullptr) return NodeKind::Split;
  const std::string name = node.name();
  std::string_view last = name;
  if (const auto colon = last.rfind(':'); colon != std::string_view::npos) last.remove_prefix(colon + 1);
  return is_product(last) ? NodeKind::Deferrable : NodeKind::Plain;
}

// Node::name() demangles at every call, which would cost more than the traversal, so each thread caches the
// kind of each node type.
NodeKind kind_of(Node& node) {
  thread_local ska::flat_hash_map<std::type_index, NodeKind, std::hash<std::type_index>> known;
  const std::type_index type = typeid(node);
  if (const auto found = known.find(type); found != known.end()) return found->second;
  const NodeKind kind = classify(node);
  known.emplace(type, kind);
  return kind;
}

class Walk {
 public:
  explicit Walk(const std::vector<Node*>& input_nodes) {
    for (Node* node : input_nodes) {
      const auto [at, is_new] = index_.emplace(node, static_cast<std::uint32_t>(nodes_.size()));
      if (is_new) nodes_.push_back({.node = node, .reaches = true, .is_input = true});
    }
  }

  // Depth-first: a node reaches an input if one of its successors does.
  std::uint32_t visit(Node* root) {
    const auto [start, is_new] = enter(root);
    if (!is_new) return start;
    stack_.push_back({start, 0});
    while (!stack_.empty()) {
      Frame& frame = stack_.back();
      const edge_list& edges = nodes_[frame.node].node->next_edges();
      if (frame.next == edges.size()) {
        const std::uint32_t finished = frame.node;
        stack_.pop_back();
        if (!stack_.empty() && nodes_[finished].reaches) nodes_[stack_.back().node].reaches = true;
        continue;
      }
      Node* child = edges[frame.next++].function.get();
      if (child == nullptr) continue;
      const auto [at, child_is_new] = enter(child);
      if (child_is_new) {
        stack_.push_back({at, 0});
      } else if (nodes_[at].reaches) {
        nodes_[frame.node].reaches = true;
      }
    }
    return start;
  }

  void fed_from_outside(std::uint32_t node) {
    nodes_[node].deferred = true;
    ++nodes_[node].feeders;
  }
  bool reaches(std::uint32_t node) const { return nodes_[node].reaches; }

  void fill(GraphSplit& split) {
    find_crossings();
    propagate_deferral();
    for (Visited& visited : nodes_) {
      if (!visited.reaches || visited.is_input) continue;
      (visited.deferred ? split.deferred : split.inner).push_back(visited.node);
      if (visited.deferred) add_inward(split.inward, visited.node->next_edges());
      if (visited.kind == NodeKind::Split)
        add_split(split.split_nodes, static_cast<SplitNode*>(visited.node));
    }
    for (const Crossing& crossing : crossings_) {
      if (!nodes_[crossing.from].deferred)
        add_early(split.early, nodes_[crossing.from].node->next_edge(crossing.edge));
    }
  }

 private:
  struct Visited {
    Node* node = nullptr;
    NodeKind kind = NodeKind::Plain;
    bool reaches = false;
    bool is_input = false;
    std::uint32_t feeders = 0;  // number of edges into it, for nodes outside R
    bool deferred = false;  // node in R: runs in both halves; target: gets its gradient in the weight half
  };
  struct Frame {
    std::uint32_t node;
    std::size_t next;
  };
  //! An edge out of R.
  struct Crossing {
    std::uint32_t from;
    std::uint32_t to;
    std::uint32_t edge;
  };

  std::pair<std::uint32_t, bool> enter(Node* node) {
    const auto [at, is_new] = index_.emplace(node, static_cast<std::uint32_t>(nodes_.size()));
    if (is_new) nodes_.push_back({.node = node});
    return {at->second, is_new};
  }

  void find_crossings() {
    for (std::uint32_t from = 0; from < nodes_.size(); ++from) {
      if (nodes_[from].is_input) continue;
      if (nodes_[from].reaches) nodes_[from].kind = kind_of(*nodes_[from].node);
      const edge_list& edges = nodes_[from].node->next_edges();
      for (std::uint32_t edge = 0; edge < edges.size(); ++edge) {
        if (!edges[edge].is_valid()) continue;
        const std::uint32_t to = index_.find(edges[edge].function.get())->second;
        if (nodes_[to].reaches) continue;
        ++nodes_[to].feeders;
        if (!nodes_[from].reaches) {
          nodes_[to].deferred = true;  // its sum has a term that only the weight half computes
        } else if (nodes_[from].kind != NodeKind::Split) {
          crossings_.push_back({from, to, edge});
          if (nodes_[from].kind == NodeKind::Deferrable) nodes_[from].deferred = true;
        }
      }
    }
    // A captured gradient has already passed the tensor hooks and would pass them again as a root. Such
    // targets are therefore deferred.
    for (const Crossing& crossing : crossings_) {
      Node& target = *nodes_[crossing.to].node;
      if (!target.tensor_pre_hooks().empty() || !target.retains_grad_hooks().empty())
        nodes_[crossing.to].deferred = true;
    }
  }

  void propagate_deferral() {
    for (bool changed = true; changed;) {
      changed = false;
      for (const Crossing& crossing : crossings_) {
        bool& from = nodes_[crossing.from].deferred;
        bool& to = nodes_[crossing.to].deferred;
        if (from == to) continue;
        from = to = changed = true;
      }
    }
  }

  void add_split(std::vector<SplitNode*>& split_nodes, SplitNode* node) const {
    const edge_list& edges = node->next_edges();
    node->alone = std::all_of(edges.begin(), edges.end(), [this](const Edge& edge) {
      if (!edge.is_valid()) return true;
      const Visited& target = nodes_[index_.find(edge.function.get())->second];
      return target.reaches || target.feeders == 1;
    });
    split_nodes.push_back(node);
  }

  void add_inward(std::vector<Edge*>& inward, edge_list& edges) const {
    for (Edge& edge : edges) {
      if (edge.is_valid() && nodes_[index_.find(edge.function.get())->second].reaches)
        inward.push_back(&edge);
    }
  }

  static void add_early(edge_list& early, const Edge& edge) {
    if (std::find(early.begin(), early.end(), edge) == early.end()) early.push_back(edge);
  }

  ska::flat_hash_map<Node*, std::uint32_t> index_;
  std::vector<Visited> nodes_;
  std::vector<Frame> stack_;
  std::vector<Crossing> crossings_;
};

}  // namespace

bool has_hooks(Node& node) {
  return !node.tensor_pre_hooks().empty() || !node.pre_hooks().empty() || !node.post_hooks().empty() ||
         !node.retains_grad_hooks().empty();
}

GraphSplit find_split(const edge_list& roots, const variable_list& root_grads,
                      const std::vector<Node*>& input_nodes) {
  GraphSplit split;
  Walk walk(input_nodes);
  for (std::size_t i = 0; i < roots.size(); ++i) {
    const std::uint32_t node = walk.visit(roots[i].function.get());
    const bool reaches = walk.reaches(node);
    if (!reaches) walk.fed_from_outside(node);
    (reaches ? split.input_roots : split.weight_roots).push_back(roots[i]);
    (reaches ? split.input_root_grads : split.weight_root_grads).push_back(root_grads[i]);
  }
  if (!split.input_roots.empty()) walk.fill(split);
  return split;
}

}  // namespace penstock::runtime
