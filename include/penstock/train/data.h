// Data sources. A batch depends only on the step and the seed, never on the ranks, so every topology and
// every resumed run sees the same examples.
#pragma once

#include <penstock/train/epochs.h>
#include <penstock/train/tensor_table.h>
#include <penstock/value/microbatch.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::train {

//! Rows of a batch, as arguments of the model and target of the loss.
struct Batch {
  value::Args args;
  value::Kwargs kwargs;
  c10::IValue target;
  std::vector<std::string> names{};  //!< names of `args`, for messages; may be empty
  std::int64_t examples = 0;
  std::optional<std::int64_t> tokens{};  //!< if the examples are sequences
  //! The argument from which the model computes its own loss, if it ignores labels of -100; `target` then
  //! holds the labels that count. A run replaces labels of rows that do not count.
  std::optional<std::string> labels{};
};

//! Rows `begin` to `end` (exclusive) of a batch.
struct Rows {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

//! Provides the rows of each training batch and of the validation set. A run calls its methods from one
//! thread at a time, but from several threads: it loads batches ahead on a thread of its own.
//! RunOptions::prefetch sets how far, and 0 keeps all calls on the thread of the run. Ranks that are threads
//! of one process call a source that they share at the same time.
class DataSource {
 public:
  virtual ~DataSource() = default;
  //! Returns the given rows of the batch of a step (from 1), which has `training_rows` rows.
  virtual Batch training(std::int64_t step, std::int64_t batch, Rows rows) const = 0;
  //! The number of rows in the batch of a step: at least 1 and at most `batch`, the batch size of the run. A
  //! batch with fewer rows runs with padding rows that do not count.
  virtual std::int64_t training_rows(std::int64_t /*step*/, std::int64_t batch) const { return batch; }
  //! Returns the target of all rows. Every rank counts the loss weights over the complete batch.
  virtual c10::IValue training_target(std::int64_t step, std::int64_t batch) const {
    return training(step, batch, {0, training_rows(step, batch)}).target;
  }
  //! The number of steps of this many passes over the data; nullopt if it has no end.
  virtual std::optional<std::int64_t> steps_of(std::int64_t /*epochs*/, std::int64_t /*batch*/) const {
    return std::nullopt;
  }
  //! The position in the data after a step, as text for the checkpoint; empty if the source has none.
  virtual std::string position_after(std::int64_t /*step*/, std::int64_t /*batch*/) const { return {}; }
  //! Returns a source whose batches after this step continue at the position; null if there are none, so that
  //! the batch of a step does not depend on earlier batches. Throws ParseError if the text is not a position.
  virtual std::unique_ptr<DataSource> continued(std::int64_t /*step*/,
                                                const std::string& /*position*/) const {
    return nullptr;
  }
  //! The number of validation rows, and a range of them. The order of the rows is fixed.
  virtual std::int64_t validation_rows() const = 0;
  virtual Batch validation(Rows rows) const = 0;
  //! Whether the tensors of all batches, also of validation, have the same dtypes and shapes except for their
  //! rows. On devices, the ranks of a pipeline then do not wait for each other at the start of a step; a
  //! batch that breaks the promise is an error.
  virtual bool has_fixed_shapes() const { return false; }
};

//! Maps the characters (bytes) of a text to token ids, in the order of their codes.
class Vocabulary {
 public:
  explicit Vocabulary(std::string_view text);

  std::int64_t size() const { return static_cast<std::int64_t>(characters_.size()); }
  //! The characters in the order of their token ids.
  const std::string& characters() const { return characters_; }
  //! Skips characters that are not in the vocabulary.
  std::vector<std::int64_t> encode(std::string_view text) const;
  //! The inverse of `encode`.
  //! A token without a character becomes U+FFFD.
  std::string decode(const std::vector<std::int64_t>& tokens) const;

 private:
  std::string characters_;
};

//! How sequences are taken from a text.
struct TextOptions {
  std::int64_t length = 128;         //!< tokens per sequence
  double validation_fraction = 0.1;  //!< fraction of the sequences reserved for validation
  std::uint64_t seed = 1;            //!< determines the order of the sequences, and which are reserved
};

//! Serves the consecutive sequences of a text in epochs, each in a random order; the target of each token is
//! the next token. `tensor_data` of a `sequence_table` has more options.
std::unique_ptr<DataSource> text_data(const std::string& text, const Vocabulary& vocabulary,
                                      const TextOptions& options);

//! The labels from which a model computes its own loss, a mean over the labels other than -100.
struct LabelInput {
  std::string name{};  //!< of the input
  //! The output at each position predicts the next label, so that the first label of each row does not count.
  bool next = false;
};

//! Which tensors of a table are served, and in which order.
struct TensorDataOptions {
  std::vector<std::string> positional{};  //!< names of the positional arguments of the model
  std::vector<std::string> keywords{};    //!< names of its keyword arguments
  //! Fraction of the rows that training leaves out, for validation: the last rows in file order, or random
  //! rows, which depend on the seed, if the order is shuffled.
  double validation_fraction = 0;
  EpochOptions order{};   //!< by default file order
  EpochPosition start{};  //!< where the batches continue; by default at the first row
  std::map<std::string, at::ScalarType> dtypes{};   //!< dtypes to which rows are converted, by name
  std::shared_ptr<const TensorTable> validation{};  //!< validation rows, instead of those left out
  std::map<std::string, c10::IValue> constants{};   //!< arguments that are the same for all rows, by name
  bool has_target = true;                           //!< false: the model computes its own loss
  std::optional<LabelInput> labels{};               //!< if its loss is a mean over labels, without a target
  std::optional<std::int64_t> tokens_per_row{};     //!< if the rows are sequences
};

//! Serves rows of tensors named after the inputs of the model, and `target`. Reads only the rows of a batch.
//! Throws UsageError if a tensor is missing, ShapeError if the numbers of rows differ.
std::unique_ptr<DataSource> tensor_data(std::shared_ptr<const TensorTable> table,
                                        const TensorDataOptions& options);
//! The same for tensors in memory.
std::unique_ptr<DataSource> tensor_data(std::map<std::string, at::Tensor> tensors,
                                        const TensorDataOptions& options);

//! Generates text of a small artificial language from a grammar and a seed, as training data if no text is
//! available.
std::string generated_text(std::size_t bytes, std::uint64_t seed = 1);

}  // namespace penstock::train
