// Data sources. A batch depends only on the step and the seed, never on the ranks, so every topology and
// every resumed run sees the same examples.
#pragma once

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
};

//! Rows `begin` to `end` (exclusive) of a batch.
struct Rows {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

//! Provides the rows of each training batch and of the validation set.
class DataSource {
 public:
  virtual ~DataSource() = default;
  //! Returns the given rows of the batch of a step (from 1), which has `batch` rows.
  virtual Batch training(std::int64_t step, std::int64_t batch, Rows rows) const = 0;
  //! Returns the target of all rows. Every rank counts the loss weights over the complete batch.
  virtual c10::IValue training_target(std::int64_t step, std::int64_t batch) const {
    return training(step, batch, {0, batch}).target;
  }
  //! The number of validation rows, and a range of them. The order of the rows is fixed.
  virtual std::int64_t validation_rows() const = 0;
  virtual Batch validation(Rows rows) const = 0;
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
  std::string decode(const std::vector<std::int64_t>& tokens) const;

 private:
  std::string characters_;
};

//! How sequences are taken from a text.
struct TextOptions {
  std::int64_t length = 128;         //!< tokens per sequence
  double validation_fraction = 0.1;  //!< fraction of the text, at its end, reserved for validation
  std::uint64_t seed = 1;            //!< determines the start positions of the sequences
};

//! Samples sequences from random positions in a text; the target of each token is the next token. The
//! validation rows are the consecutive sequences of the reserved fraction, shuffled by the seed.
std::unique_ptr<DataSource> text_data(const std::string& text, const Vocabulary& vocabulary,
                                      const TextOptions& options);

//! Serves tensors named after the inputs of the model (positional arguments in order, then keywords), and
//! `target`. Step k takes `batch` examples starting at (k-1)*batch, modulo the number of examples. The last
//! `validation_fraction` is reserved for validation.
struct TensorDataOptions {
  std::vector<std::string> positional{};
  std::vector<std::string> keywords{};
  double validation_fraction = 0;
};
std::unique_ptr<DataSource> tensor_data(std::map<std::string, at::Tensor> tensors,
                                        const TensorDataOptions& options);

//! Generates text of a small artificial language from a grammar and a seed, as training data if no text is
//! available.
std::string generated_text(std::size_t bytes, std::uint64_t seed = 1);

}  // namespace penstock::train
