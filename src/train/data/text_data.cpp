// Serves the characters of a text as training data.
#include "base/text.h"

#include <penstock/base/error.h>
#include <penstock/train/data.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randperm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <array>

namespace penstock::train {
namespace {

std::uint64_t mixed(std::uint64_t seed, std::uint64_t stream, std::uint64_t number) {
  std::uint64_t key = seed * 0x9e3779b97f4a7c15ULL + stream * 0xc2b2ae3d27d4eb4fULL + number;
  for (const std::uint64_t factor : {0xbf58476d1ce4e5b9ULL, 0x94d049bb133111ebULL})
    key = (key ^ (key >> 30)) * factor;
  return key ^ (key >> 31);
}

at::Tensor to_tensor(const std::vector<std::int64_t>& tokens) {
  return at::tensor(tokens, at::kLong);
}

class TextData : public DataSource {
 public:
  TextData(const std::string& text, const Vocabulary& vocabulary, const TextOptions& options)
      : options_(options) {
    if (options.length < 1) throw UsageError("a sequence needs at least one token");
    if (!(options.validation_fraction >= 0 && options.validation_fraction < 1))
      throw UsageError("the validation fraction must be at least 0 and below 1");
    const at::Tensor all = to_tensor(vocabulary.encode(text));
    const auto kept =
        static_cast<std::int64_t>(static_cast<double>(all.size(0)) * options.validation_fraction);
    training_ = all.narrow(0, 0, all.size(0) - kept);
    validation_ = all.narrow(0, all.size(0) - kept, kept);
    if (training_.size(0) <= options.length)
      throw UsageError(
          str_cat("a text of ", all.size(0), " characters is too short for sequences of ", options.length),
          {}, "use a longer text, or shorter sequences");
    auto generator = at::make_generator<at::CPUGeneratorImpl>(mixed(options.seed, 1, 0));
    order_ = at::randperm(std::max<std::int64_t>(kept - 1, 0) / options.length, generator, at::kLong);
  }

  Batch training(std::int64_t step, std::int64_t batch, Rows rows) const override {
    return take(training_, training_positions(step, batch), rows);
  }
  c10::IValue training_target(std::int64_t step, std::int64_t batch) const override {
    return sequences(training_, training_positions(step, batch), {0, batch}, 1);
  }
  bool has_fixed_shapes() const override { return true; }
  std::optional<std::int64_t> steps_of(std::int64_t epochs, std::int64_t batch) const override {
    return steps_over(epochs, training_.size(0), batch * options_.length);
  }
  std::int64_t validation_rows() const override { return order_.size(0); }
  Batch validation(Rows rows) const override { return take(validation_, order_ * options_.length, rows); }

 private:
  at::Tensor training_positions(std::int64_t step, std::int64_t batch) const {
    auto generator =
        at::make_generator<at::CPUGeneratorImpl>(mixed(options_.seed, 0, static_cast<std::uint64_t>(step)));
    return at::randint(0, training_.size(0) - options_.length, {batch}, generator, at::kLong);
  }

  at::Tensor sequences(const at::Tensor& tokens, const at::Tensor& positions, Rows rows,
                       std::int64_t offset) const {
    std::vector<at::Tensor> all;
    for (std::int64_t row = rows.begin; row < rows.end; ++row)
      all.push_back(tokens.narrow(0, positions[row].item<std::int64_t>() + offset, options_.length));
    return at::stack(all);
  }

  Batch take(const at::Tensor& tokens, const at::Tensor& positions, Rows rows) const {
    Batch result;
    result.args = {sequences(tokens, positions, rows, 0)};
    result.target = sequences(tokens, positions, rows, 1);
    result.examples = rows.end - rows.begin;
    result.tokens = result.examples * options_.length;
    return result;
  }

  TextOptions options_;
  at::Tensor training_, validation_;
  at::Tensor order_;  // permutation of the validation sequences
};

}  // namespace

Vocabulary::Vocabulary(std::string_view text) {
  std::array<bool, 256> seen{};
  for (const char c : text) seen[static_cast<unsigned char>(c)] = true;
  for (std::size_t c = 0; c < seen.size(); ++c)
    if (seen[c]) characters_ += static_cast<char>(c);
  if (characters_.empty()) throw UsageError("the text is empty");
}

std::vector<std::int64_t> Vocabulary::encode(std::string_view text) const {
  std::array<std::int64_t, 256> number{};
  number.fill(-1);
  for (std::size_t i = 0; i < characters_.size(); ++i)
    number[static_cast<unsigned char>(characters_[i])] = static_cast<std::int64_t>(i);
  std::vector<std::int64_t> tokens;
  tokens.reserve(text.size());
  for (const char c : text)
    if (const auto n = number[static_cast<unsigned char>(c)]; n >= 0) tokens.push_back(n);
  return tokens;
}

std::string Vocabulary::decode(const std::vector<std::int64_t>& tokens) const {
  std::string text;
  for (const auto token : tokens) {
    const auto index = static_cast<std::size_t>(token);
    if (index < characters_.size())
      text += characters_[index];
    else
      text += "\xEF\xBF\xBD";  // U+FFFD
  }
  return text;
}

std::unique_ptr<DataSource> text_data(const std::string& text, const Vocabulary& vocabulary,
                                      const TextOptions& options) {
  return std::make_unique<TextData>(text, vocabulary, options);
}

}  // namespace penstock::train
