// A batch in, microbatches out, and back: how the arguments of a step are cut into chunks and how the outputs
// of the chunks become one value again.
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

namespace penstock {

//! Cut along this dim (negative ones count from the end), as `tensor_split` does: with 10 rows in 4 chunks,
//! the first two have 3 and the others 2.
struct TensorChunkSpec {
  std::int64_t dim = 0;
};

//! The same value in every chunk. When merging: the chunks must agree.
struct Replicate {};

//! Merging only: one value from the values of all chunks, for example of their losses.
struct Reducer {
  std::function<c10::IValue(const std::vector<c10::IValue>&)> reduce;

  static Reducer sum();
  static Reducer mean();
  //! `step(step(init, first), second)`…
  static Reducer fold(c10::IValue init,
                      std::function<c10::IValue(const c10::IValue&, const c10::IValue&)> step);
};

//! How a tree is cut or merged: one rule for all that is below it, or one for each item of a list, tuple or
//! dict.
struct ChunkSpec {
  using Items = std::vector<ChunkSpec>;
  using Entries = std::map<std::string, ChunkSpec>;

  std::variant<TensorChunkSpec, Replicate, Reducer, Items, Entries> rule;

  ChunkSpec(TensorChunkSpec spec) : rule(spec) {}           // NOLINT: specs are written in place
  ChunkSpec(Replicate spec) : rule(spec) {}                 // NOLINT
  ChunkSpec(Reducer spec) : rule(std::move(spec)) {}        // NOLINT
  ChunkSpec(Items items) : rule(std::move(items)) {}        // NOLINT
  ChunkSpec(Entries entries) : rule(std::move(entries)) {}  // NOLINT

  //! A TensorChunkSpec for each item.
  static ChunkSpec dims(const std::vector<std::int64_t>& dims);
  static ChunkSpec named_dims(const std::map<std::string, std::int64_t>& dims);

  //! For example `(TensorChunkSpec(0), {mask: Replicate})`.
  std::string text() const;
};

using Args = std::vector<c10::IValue>;
using Kwargs = std::map<std::string, c10::IValue>;

struct Chunks {
  std::vector<Args> args;
  std::vector<Kwargs> kwargs;
  std::vector<std::int64_t> rows;  //!< of the first tensor in each chunk; empty if all is replicated
};

//! Splits the arguments into exactly `chunks` chunks. Without a spec, tensors and registered types are split
//! along dim 0; scalars, text, None and tensors without dims are replicated. What a spec covers is split each
//! on its own, whatever its number of rows; where there is none, a number of rows that differs from that of
//! the first tensor is taken for a mistake. One ShapeError names every such tensor and every one that has
//! fewer rows than chunks. UsageError for a spec that does not fit the tree.
Chunks split_args_kwargs_into_chunks(const Args& args, const Kwargs& kwargs, int chunks,
                                     const std::optional<ChunkSpec>& args_spec = std::nullopt,
                                     const std::optional<ChunkSpec>& kwargs_spec = std::nullopt);

//! The same for one tree, for example the target; `root` is its name in errors.
std::vector<c10::IValue> split_tree(const c10::IValue& tree, int chunks, const std::string& root,
                                    const std::optional<ChunkSpec>& spec = std::nullopt);

//! One value from the values of the chunks. Without a spec, tensors and registered types are joined along dim
//! 0 and other leaves must agree.
c10::IValue merge_chunks(const std::vector<c10::IValue>& chunks,
                         const std::optional<ChunkSpec>& spec = std::nullopt);

//! The sizes of the chunks that `rows` rows are cut into.
std::vector<std::int64_t> chunk_sizes(std::int64_t rows, int chunks);

//! How values of a user's own type (a torch::CustomClassHolder in an IValue) are cut and merged.
struct Splitter {
  //! The rows to cut, or nothing if the value serves every chunk as it is.
  std::function<std::optional<std::int64_t>(const c10::IValue&)> rows;
  //! One value for each of the sizes, whose sum is `rows(value)`.
  std::function<std::vector<c10::IValue>(const c10::IValue&, const std::vector<std::int64_t>&)> split;
  //! The inverse; may be empty if such values are never outputs.
  std::function<c10::IValue(const std::vector<c10::IValue>&)> merge;
};

//! Registers it for the dynamic type `type` (a class derived from torch::CustomClassHolder), for the whole
//! process.
void register_splitter(std::type_index type, Splitter splitter);

}  // namespace penstock
