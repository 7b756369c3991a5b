// Splits trees into chunks. All leaves are measured first, so that one error can list all that do not fit,
// then split.
#include "base/text.h"
#include "value/chunk_rules.h"
#include "value/distributed_values.h"

#include <penstock/base/error.h>
#include <penstock/value/microbatch.h>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/tensor_split.h>

#include <numeric>

namespace penstock::value {
namespace {

using c10::IValue;

// How one leaf is split.
struct LeafSplit {
  std::optional<std::int64_t> rows;  // nullopt: replicate
  std::int64_t dim = 0;
};

std::string measure_text(const IValue& leaf, const LeafSplit& split) {
  std::string text = counted(*split.rows, "row");
  if (!leaf.isTensor()) return text;
  return str_cat(text, " in dim ", split.dim, " (shape ", format_shape(leaf.toTensor().sizes()), ")");
}

LeafSplit measure(const IValue& leaf, const LeafRule& rule, const std::string& path) {
  ErrorContext context;
  context.tensor = path;
  if (std::holds_alternative<Replicate>(rule)) return {};
  if (std::holds_alternative<Reducer>(rule))
    throw UsageError("a Reducer can only merge chunks, not split a value", context);
  std::int64_t dim = std::get<TensorChunkSpec>(rule).dim;
  if (!leaf.isTensor()) {
    if (dim != 0) throw UsageError("values of a registered type can only be split along dim 0", context);
    return {find_splitter(leaf)->rows(leaf), 0};
  }
  const at::Tensor& tensor = leaf.toTensor();
  if (dim < -tensor.dim() || dim >= tensor.dim()) {
    throw ShapeError(str_cat("a tensor of ", tensor.dim(), " dims cannot be split along dim ", dim), context);
  }
  if (dim < 0) dim += tensor.dim();
  return {tensor.size(dim), dim};
}

std::vector<at::Tensor> split_tensor(const at::Tensor& tensor, int chunks, std::int64_t dim) {
  if (const DistributedValues* const distributed = distributed_values(tensor))
    return distributed->split(tensor, chunks, dim);
  std::optional<at::AutoDispatchBelowADInplaceOrView> below_autograd;  // views that it need not track
  if (!tensor.requires_grad()) below_autograd.emplace();
  return at::tensor_split(tensor, chunks, dim);
}

std::vector<IValue> split_leaf(const IValue& leaf, const LeafSplit& split, int chunks) {
  if (!split.rows) return std::vector<IValue>(chunks, leaf);
  if (!leaf.isTensor()) {
    auto parts = find_splitter(leaf)->split(leaf, chunk_sizes(*split.rows, chunks));
    if (parts.size() == static_cast<std::size_t>(chunks)) return parts;
    throw UsageError(str_cat("a registered splitter returned ", parts.size(), " parts instead of ", chunks));
  }
  std::vector<IValue> parts;
  for (at::Tensor& part : split_tensor(leaf.toTensor(), chunks, split.dim))
    parts.emplace_back(std::move(part));
  return parts;
}

//! The number of rows of a leaf in each chunk. Each shard of a distributed tensor is split separately.
std::vector<std::int64_t> rows_of_chunks(const IValue& leaf, const LeafSplit& split, int chunks,
                                         const std::string& path) {
  const DistributedValues* const distributed =
      leaf.isTensor() ? distributed_values(leaf.toTensor()) : nullptr;
  if (!distributed) return chunk_sizes(*split.rows, chunks);
  return distributed->chunk_rows(leaf.toTensor(), chunks, split.dim, {.tensor = path});
}

RowOrder order_of(const IValue& leaf, const LeafSplit& split, int chunks) {
  const DistributedValues* const distributed =
      leaf.isTensor() ? distributed_values(leaf.toTensor()) : nullptr;
  if (!distributed || chunks == 1) return {1};
  RowOrder shards = distributed->shards(leaf.toTensor(), split.dim);
  std::erase(shards, 0);
  std::int64_t divisor = 0;
  for (const std::int64_t shard : shards) divisor = std::gcd(divisor, shard);
  for (std::int64_t& shard : shards) shard /= divisor;
  return shards.empty() ? RowOrder{1} : shards;
}

// Collects all leaves of a call, so that they can be compared with each other.
class Splitting {
 public:
  explicit Splitting(int chunks) : chunks_(chunks) {
    if (chunks < 1) throw UsageError(str_cat("a batch cannot be split into ", chunks, " microbatches"));
  }

  void add(const IValue& tree, const std::string& root, const std::optional<ChunkSpec>& spec) {
    FlatTree flat = flatten(tree);
    const std::vector<LeafRule> rules = leaf_rules(flat, spec, root);
    const std::vector<std::string> paths = flat.structure.paths(root);
    std::vector<LeafSplit> splits;
    for (std::size_t i = 0; i < rules.size(); ++i) {
      splits.push_back(measure(flat.leaves[i], rules[i], paths[i]));
      if (splits.back().rows) check_leaf(flat.leaves[i], splits.back(), paths[i], spec.has_value());
    }
    trees_.push_back({std::move(flat), std::move(splits)});
  }

  void check() const {
    if (faults_.empty()) return;
    throw ShapeError(
        str_cat("the batch cannot be split into ", chunks_, " microbatches: ", join(faults_, "; ")), {},
        orders_differ_ ? row_order_hint()
        : rows_differ_
            ? "use a chunk spec for tensors with different row counts: TensorChunkSpec splits each "
              "separately, Replicate does not split"
            : "use fewer microbatches, another dim, or Replicate for values without rows");
  }

  std::vector<IValue> chunk_tree(std::size_t which) const {
    const auto& [flat, splits] = trees_[which];
    std::vector<std::vector<IValue>> leaves(chunks_);
    for (std::size_t i = 0; i < splits.size(); ++i) {
      std::vector<IValue> parts = split_leaf(flat.leaves[i], splits[i], chunks_);
      for (int chunk = 0; chunk < chunks_; ++chunk) leaves[chunk].push_back(std::move(parts[chunk]));
    }
    std::vector<IValue> trees;
    trees.reserve(chunks_);
    for (const auto& part : leaves) trees.push_back(unflatten(part, flat.structure));
    return trees;
  }

  const std::vector<std::int64_t>& rows() const { return chunk_rows_; }
  const RowOrder& order() const { return order_; }

 private:
  struct Tree {
    FlatTree flat;
    std::vector<LeafSplit> splits;
  };

  void check_leaf(const IValue& leaf, const LeafSplit& split, const std::string& path, bool has_spec) {
    if (*split.rows < chunks_)
      faults_.push_back(path + " has only " + measure_text(leaf, split));
    else if (chunk_rows_.empty())
      chunk_rows_ = rows_of_chunks(leaf, split, chunks_, path);
    const RowOrder order = order_of(leaf, split, chunks_);
    if (order_.empty()) {
      order_ = order;
      ordered_ = path;
    } else if (order != order_) {
      faults_.push_back("the rows of " + path + " are " + order_text(order) + " and those of " + ordered_ +
                        " " + order_text(order_) + ", so microbatches would pair different rows");
      orders_differ_ = true;
    }
    if (has_spec) return;
    if (!common_rows_) {
      common_rows_ = split.rows;
      first_ = path + " with " + measure_text(leaf, split);
    } else if (*split.rows >= chunks_ && *split.rows != *common_rows_) {
      faults_.push_back(path + " has " + measure_text(leaf, split) + ", which disagrees with " + first_);
      rows_differ_ = true;
    }
  }

  int chunks_;
  std::vector<Tree> trees_;
  std::vector<std::int64_t> chunk_rows_;     // of the first leaf that is split
  std::optional<std::int64_t> common_rows_;  // rows of the values without a spec
  std::string first_;
  RowOrder order_;       // of the first leaf that is split
  std::string ordered_;  // its path
  std::vector<std::string> faults_;
  bool rows_differ_ = false, orders_differ_ = false;
};

c10::impl::GenericDict as_dict(const Kwargs& kwargs) {
  c10::impl::GenericDict dict(c10::StringType::get(), c10::AnyType::get());
  for (const auto& [name, value] : kwargs) dict.insert(name, value);
  return dict;
}

}  // namespace

std::vector<std::int64_t> chunk_sizes(std::int64_t rows, int chunks) {
  std::vector<std::int64_t> sizes(chunks, rows / chunks);
  for (std::int64_t i = 0; i < rows % chunks; ++i) ++sizes[i];
  return sizes;
}

std::vector<IValue> split_tree(const IValue& tree, int chunks, const std::string& root,
                               const std::optional<ChunkSpec>& spec) {
  Splitting splitting(chunks);
  splitting.add(tree, root, spec);
  splitting.check();
  return splitting.chunk_tree(0);
}

RowOrder row_order(const IValue& tree, int chunks, const std::string& root,
                   const std::optional<ChunkSpec>& spec) {
  Splitting splitting(chunks);
  splitting.add(tree, root, spec);
  splitting.check();
  return splitting.order();
}

RowOrder row_order(const Kwargs& kwargs, int chunks, const std::string& root,
                   const std::optional<ChunkSpec>& spec) {
  return row_order(IValue(as_dict(kwargs)), chunks, root, spec);
}

std::string order_text(const RowOrder& order) {
  return order.size() <= 1 ? "not sharded" : str_cat("in ", order.size(), " shards");
}

const char* row_order_hint() {
  return "give all of them the placements of the batch: distribute_tensor(target, mesh_of(input), "
         "placements_of(input))";
}

std::optional<std::int64_t> count_rows(const Args& args, const Kwargs& kwargs,
                                       const std::optional<ChunkSpec>& args_spec,
                                       const std::optional<ChunkSpec>& kwargs_spec) {
  const auto rows_in = [](const IValue& tree, const std::string& root,
                          const std::optional<ChunkSpec>& spec) -> std::optional<std::int64_t> {
    const FlatTree flat = flatten(tree);
    const std::vector<LeafRule> rules = leaf_rules(flat, spec, root);
    const std::vector<std::string> paths = flat.structure.paths(root);
    for (std::size_t i = 0; i < rules.size(); ++i) {
      if (const auto rows = measure(flat.leaves[i], rules[i], paths[i]).rows) return rows;
    }
    return std::nullopt;
  };
  const auto rows = rows_in(c10::ivalue::Tuple::create(args), "args", args_spec);
  return rows ? rows : rows_in(as_dict(kwargs), "kwargs", kwargs_spec);
}

Chunks split_args_kwargs_into_chunks(const Args& args, const Kwargs& kwargs, int chunks,
                                     const std::optional<ChunkSpec>& args_spec,
                                     const std::optional<ChunkSpec>& kwargs_spec) {
  Splitting splitting(chunks);
  splitting.add(c10::ivalue::Tuple::create(args), "args", args_spec);
  splitting.add(as_dict(kwargs), "kwargs", kwargs_spec);
  splitting.check();

  Chunks result;
  result.rows = splitting.rows();
  for (const IValue& part : splitting.chunk_tree(0))
    result.args.push_back(part.toTupleRef().elements().vec());
  for (const IValue& part : splitting.chunk_tree(1)) {
    Kwargs named;
    for (const auto& entry : part.toGenericDict()) named.emplace(entry.key().toStringRef(), entry.value());
    result.kwargs.push_back(std::move(named));
  }
  return result;
}

}  // namespace penstock::value
