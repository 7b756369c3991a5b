// Splits the arguments of a step into microbatches (chunks) and merges the outputs of the chunks.
#pragma once

#include <penstock/value/tree.h>

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <typeindex>
#include <utility>
#include <variant>
#include <vector>

namespace penstock::value {

//! Split along this dim (negative dims count from the end), as `tensor_split` does: 10 rows in 4 chunks give
//! chunks of 3, 3, 2 and 2 rows.
struct TensorChunkSpec {
  std::int64_t dim = 0;
};

//! Every chunk gets the same value. When merging, the chunks must agree.
struct Replicate {};

//! Merging only: reduces the values of all chunks, for example their losses, to one value.
struct Reducer {
  std::function<c10::IValue(const std::vector<c10::IValue>&)> reduce;

  //! Adds the values.
  static Reducer sum();
  //! Divides the sum by the number of chunks.
  static Reducer mean();
  //! Computes `step(step(init, first), second)`…
  static Reducer fold(c10::IValue init,
                      std::function<c10::IValue(const c10::IValue&, const c10::IValue&)> step);
};

//! How a tree is split or merged: one rule for the entire subtree, or one rule per item of a list, tuple or
//! dict.
struct ChunkSpec {
  using Items = std::vector<ChunkSpec>;
  using Entries = std::map<std::string, ChunkSpec>;

  std::variant<TensorChunkSpec, Replicate, Reducer, Items, Entries> rule;

  ChunkSpec(TensorChunkSpec spec) : rule(spec) {}           // NOLINT: implicit, for brace initialization
  ChunkSpec(Replicate spec) : rule(spec) {}                 // NOLINT
  ChunkSpec(Reducer spec) : rule(std::move(spec)) {}        // NOLINT
  ChunkSpec(Items items) : rule(std::move(items)) {}        // NOLINT
  ChunkSpec(Entries entries) : rule(std::move(entries)) {}  // NOLINT

  //! Makes a TensorChunkSpec for each item.
  static ChunkSpec dims(const std::vector<std::int64_t>& dims);
  //! Makes a TensorChunkSpec for each keyword argument.
  static ChunkSpec named_dims(const std::map<std::string, std::int64_t>& dims);
};

//! For example `(TensorChunkSpec(0), {mask: Replicate})`.
std::string to_string(const ChunkSpec& spec);

//! The positional arguments of a module.
using Args = std::vector<c10::IValue>;
//! The keyword arguments of a module.
using Kwargs = std::map<std::string, c10::IValue>;

//! The arguments of each microbatch.
struct Chunks {
  std::vector<Args> args;
  std::vector<Kwargs> kwargs;
  std::vector<std::int64_t> rows;  //!< of the first tensor in each chunk; empty if all values are replicated
};

//! Splits the arguments into exactly `chunks` chunks. Without a spec, tensors and registered types are split
//! along dim 0; scalars, strings, None and 0-dim tensors are replicated. Values that a spec covers may differ
//! in their number of rows. All others must have as many rows as the first tensor. One ShapeError lists every
//! tensor that violates this and every tensor with fewer rows than chunks. Throws UsageError if a spec does
//! not match the tree.
Chunks split_args_kwargs_into_chunks(const Args& args, const Kwargs& kwargs, int chunks,
                                     const std::optional<ChunkSpec>& args_spec = std::nullopt,
                                     const std::optional<ChunkSpec>& kwargs_spec = std::nullopt);

//! Splits a single tree, for example the target; `root` is its name in errors.
std::vector<c10::IValue> split_tree(const c10::IValue& tree, int chunks, const std::string& root,
                                    const std::optional<ChunkSpec>& spec = std::nullopt);

//! Merges the values of the chunks. Without a spec, tensors and registered types are concatenated along dim
//! 0; other leaves must agree.
c10::IValue merge_chunks(const std::vector<c10::IValue>& chunks,
                         const std::optional<ChunkSpec>& spec = std::nullopt);

//! The sizes of the chunks into which `rows` rows are split.
std::vector<std::int64_t> chunk_sizes(std::int64_t rows, int chunks);

//! How values of a custom type (a torch::CustomClassHolder in an IValue) are split and merged.
struct Splitter {
  //! The number of rows to split, or nullopt to replicate the value.
  std::function<std::optional<std::int64_t>(const c10::IValue&)> rows;
  //! Returns one value per size; the sizes sum to `rows(value)`.
  std::function<std::vector<c10::IValue>(const c10::IValue&, const std::vector<std::int64_t>&)> split;
  //! The inverse of `split`; may be empty if such values are never outputs.
  std::function<c10::IValue(const std::vector<c10::IValue>&)> merge;
};

//! Registers a splitter for the dynamic type `type` (a class derived from torch::CustomClassHolder), for the
//! whole process.
void register_splitter(std::type_index type, Splitter splitter);

}  // namespace penstock::value
