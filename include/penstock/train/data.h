// Where batches come from. A batch depends on the step and the seed alone, never on the ranks, so that every
// topology and every resumed run sees the same examples.
#pragma once

#include <penstock/value/microbatch.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::train {

struct Batch {
  Args args;
  Kwargs kwargs;
  c10::IValue target;
  std::vector<std::string> names{};  //!< of `args`, for messages; may be empty
  std::int64_t examples = 0;
  std::int64_t tokens = 0;  //!< 0 where examples are no sequences
};

//! Rows `begin` … `end` of a batch.
struct Rows {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

class DataSource {
 public:
  virtual ~DataSource() = default;
  //! Of the batch of this step (from 1), which has `batch` rows.
  virtual Batch training(std::int64_t step, std::int64_t batch, Rows rows) const = 0;
  //! The target of all its rows: what losses weigh is counted over the whole batch on every rank.
  virtual c10::IValue training_target(std::int64_t step, std::int64_t batch) const {
    return training(step, batch, {0, batch}).target;
  }
  //! How many rows are kept for validation, and some of them. Which row has which number is always the same.
  virtual std::int64_t validation_rows() const = 0;
  virtual Batch validation(Rows rows) const = 0;
};

//! The characters (bytes) of a text as numbers, by order of their codes.
class Vocabulary {
 public:
  explicit Vocabulary(std::string_view text);

  std::int64_t size() const { return static_cast<std::int64_t>(characters_.size()); }
  const std::string& characters() const { return characters_; }
  std::vector<std::int64_t> encode(
      std::string_view text) const;  //!< characters that it does not have are left out
  std::string decode(const std::vector<std::int64_t>& tokens) const;

 private:
  std::string characters_;
};

struct TextOptions {
  std::int64_t length = 128;  //!< tokens of a sequence
  double validation = 0.1;    //!< the share at the text's end that is kept for validation
  std::uint64_t seed = 1;     //!< of the places that sequences begin at
};

//! Sequences from random places of a text; the target of each token is the next. Validation rows are the
//! sequences that the kept share divides into, in an order that follows from the seed.
std::unique_ptr<DataSource> text_data(const std::string& text, const Vocabulary& vocabulary,
                                      const TextOptions& options);

//! Tensors by the model's input names (`inputs`, in the order of its positional arguments; then its
//! keywords), and `target`. Step k takes examples (k-1)*batch … in order, modulo their number; the last
//! `validation` share is kept.
struct TensorDataOptions {
  std::vector<std::string> positional;
  std::vector<std::string> keywords;
  double validation = 0;
};
std::unique_ptr<DataSource> tensor_data(std::map<std::string, at::Tensor> tensors,
                                        const TensorDataOptions& options);

//! A small language, made up from a grammar by the seed: what a model can learn where there is no text at
//! hand.
std::string generated_text(std::size_t bytes, std::uint64_t seed = 1);

}  // namespace penstock::train
