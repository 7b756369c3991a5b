// Chunk specs: their text, their application to a tree, and the registry of custom splitters.
#include "value/chunk_rules.h"

#include "base/text.h"
#include "value/kind_name.h"

#include <penstock/base/error.h>

#include <ATen/core/ivalue.h>
#include <torch/custom_class.h>

#include <mutex>
#include <unordered_map>

namespace penstock::value {
namespace {

using c10::IValue;
using Kind = Structure::Kind;

struct Splitters {
  std::mutex mutex;
  std::unordered_map<std::type_index, Splitter> splitters;  // node-based: pointers to values stay valid
};

Splitters& all_splitters() {
  static Splitters instance;
  return instance;
}

const torch::CustomClassHolder* holder_of(const IValue& value,
                                          c10::intrusive_ptr<torch::CustomClassHolder>& keep) {
  if (value.isCapsule()) {
    keep = value.toCapsule();
  } else if (value.isCustomClass()) {
    keep = value.toObjectRef().getSlot(0).toCapsule();
  }
  return keep.get();
}

bool can_be_split(const IValue& leaf) {
  if (leaf.isTensor()) return leaf.toTensor().defined() && leaf.toTensor().dim() > 0;
  return find_splitter(leaf) != nullptr;
}

class RuleAssigner {
 public:
  RuleAssigner(const FlatTree& tree, std::string root) : tree_(tree), root_(std::move(root)) {}

  std::vector<LeafRule> assign(const std::optional<ChunkSpec>& spec) {
    if (spec) {
      assign(tree_.structure, *spec);
    } else {
      assign_leaves(tree_.structure.num_leaves(), TensorChunkSpec{}, true);
    }
    return std::move(rules_);
  }

 private:
  // A rule for a subtree splits the leaves that can be split; a rule for one leaf must apply to it.
  void assign_leaves(std::size_t count, const LeafRule& rule, bool lenient) {
    for (std::size_t i = 0; i < count; ++i) {
      const IValue& leaf = tree_.leaves[rules_.size()];
      if (!std::holds_alternative<TensorChunkSpec>(rule) || can_be_split(leaf)) {
        rules_.push_back(rule);
      } else if (lenient) {
        rules_.emplace_back(Replicate{});
      } else {
        fail("a value of kind " + kind_name(leaf) + (leaf.isTensor() ? " without dims" : "") +
                 " cannot be split",
             "use Replicate");
      }
    }
  }

  void assign(const Structure& node, const ChunkSpec& spec) {
    if (const auto* items = std::get_if<ChunkSpec::Items>(&spec.rule))
      return assign_items(node, *items, spec);
    if (const auto* entries = std::get_if<ChunkSpec::Entries>(&spec.rule))
      return assign_entries(node, *entries, spec);
    LeafRule rule = Replicate{};
    if (const auto* chunk = std::get_if<TensorChunkSpec>(&spec.rule)) rule = *chunk;
    if (const auto* reducer = std::get_if<Reducer>(&spec.rule)) rule = *reducer;
    assign_leaves(node.num_leaves(), rule, node.kind != Kind::Leaf);
  }

  void assign_items(const Structure& node, const ChunkSpec::Items& items, const ChunkSpec& spec) {
    const bool sequence = node.kind == Kind::List || node.kind == Kind::Tuple;
    if (!sequence || node.children.size() != items.size()) misfit(node, spec);
    for (std::size_t i = 0; i < items.size(); ++i) assign(node.children[i], items[i]);
  }

  void assign_entries(const Structure& node, const ChunkSpec::Entries& entries, const ChunkSpec& spec) {
    if (node.kind != Kind::Dict || node.keys.size() != entries.size()) misfit(node, spec);
    for (std::size_t i = 0; i < node.children.size(); ++i) {
      const auto* name = std::get_if<std::string>(&node.keys[i]);
      const auto entry = name != nullptr ? entries.find(*name) : entries.end();
      if (entry == entries.end()) misfit(node, spec);
      assign(node.children[i], entry->second);
    }
  }

  [[noreturn]] void misfit(const Structure& node, const ChunkSpec& spec) const {
    fail("the chunk spec " + to_string(spec) + " does not fit " + to_string(node),
         "use one spec per item, or one for all items");
  }

  [[noreturn]] void fail(const std::string& message, const std::string& hint) const {
    ErrorContext context;
    const std::vector<std::string> paths = tree_.structure.paths(root_);
    context.tensor = rules_.size() < paths.size() ? paths[rules_.size()] : root_;
    throw UsageError(message, context, hint);
  }

  const FlatTree& tree_;
  std::string root_;
  std::vector<LeafRule> rules_;
};

}  // namespace

ChunkSpec ChunkSpec::dims(const std::vector<std::int64_t>& dims) {
  Items items;
  for (const std::int64_t dim : dims) items.emplace_back(TensorChunkSpec{dim});
  return items;
}

ChunkSpec ChunkSpec::named_dims(const std::map<std::string, std::int64_t>& dims) {
  Entries entries;
  for (const auto& [name, dim] : dims) entries.emplace(name, TensorChunkSpec{dim});
  return entries;
}

std::string to_string(const ChunkSpec& spec) {
  if (const auto* split = std::get_if<TensorChunkSpec>(&spec.rule))
    return str_cat("TensorChunkSpec(", split->dim, ")");
  if (std::holds_alternative<Replicate>(spec.rule)) return "Replicate";
  if (std::holds_alternative<Reducer>(spec.rule)) return "Reducer";
  std::vector<std::string> parts;
  if (const auto* items = std::get_if<ChunkSpec::Items>(&spec.rule)) {
    for (const ChunkSpec& item : *items) parts.push_back(to_string(item));
    return "(" + join(parts, ", ") + ")";
  }
  for (const auto& [name, entry] : std::get<ChunkSpec::Entries>(spec.rule))
    parts.push_back(name + ": " + to_string(entry));
  return "{" + join(parts, ", ") + "}";
}

std::vector<LeafRule> leaf_rules(const FlatTree& tree, const std::optional<ChunkSpec>& spec,
                                 const std::string& root) {
  return RuleAssigner(tree, root).assign(spec);
}

void register_splitter(std::type_index type, Splitter splitter) {
  if (!splitter.rows || !splitter.split)
    throw UsageError("a splitter needs the functions `rows` and `split`");
  const std::scoped_lock lock(all_splitters().mutex);
  all_splitters().splitters.insert_or_assign(type, std::move(splitter));
}

const Splitter* find_splitter(const IValue& value) {
  c10::intrusive_ptr<torch::CustomClassHolder> keep;
  const torch::CustomClassHolder* holder = holder_of(value, keep);
  if (holder == nullptr) return nullptr;
  const std::scoped_lock lock(all_splitters().mutex);
  const auto found = all_splitters().splitters.find(typeid(*holder));
  return found == all_splitters().splitters.end() ? nullptr : &found->second;
}

}  // namespace penstock::value
