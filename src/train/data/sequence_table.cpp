// Sequences of a stream of tokens as rows of a table.
#include "base/text.h"

#include <penstock/base/error.h>
#include <penstock/models/documents.h>
#include <penstock/train/tokens.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <limits>

namespace penstock::train {
namespace {

constexpr const char* kTargets = "target";
constexpr std::int64_t kPaddingLabel = -100;

class SequenceTable : public TensorTable {
 public:
  SequenceTable(std::shared_ptr<const TokenStream> stream, const SequenceOptions& options)
      : TensorTable(columns_of(*stream, options)), stream_(std::move(stream)), options_(options) {}

 private:
  static std::map<std::string, TableColumn> columns_of(const TokenStream& stream,
                                                       const SequenceOptions& options) {
    if (options.length < 1) throw UsageError("a sequence needs at least one token");
    if (stream.size() < 2)
      throw UsageError(
          str_cat("the data has ", counted(stream.size(), "token"), "; a sequence needs at least 2"), {},
          "every token is predicted from the tokens before it: use more data");
    const std::int64_t rows = (stream.size() - 1 + options.length - 1) / options.length;
    const TableColumn column{at::kLong, {rows, options.length}};
    std::map<std::string, TableColumn> columns{{options.input, column}, {kTargets, column}};
    if (options.labels) columns[options.labels->name] = column;
    if (options.documents)
      for (const auto& [name, tensor] : options.documents->tensors)
        columns[name] = column_of(tensor, rows, options.length);
    return columns;
  }

  static TableColumn column_of(const DocumentColumn& column, std::int64_t rows, std::int64_t length) {
    if (column.content == DocumentTensor::Positions) return {at::kLong, {rows, length}};
    if (column.content == DocumentTensor::Padding) return {column.mask_dtype, {rows, length}};
    if (column.has_head_dim) return {column.mask_dtype, {rows, 1, length, length}};
    return {column.mask_dtype, {rows, length, length}};
  }

  at::Tensor read(const std::string& name, const std::vector<std::int64_t>& rows) const override {
    if (name == options_.input) return inputs_of(rows, 0);
    if (options_.labels && name == options_.labels->name) return labels_of(rows, options_.labels->next);
    if (name == kTargets) return labels_of(rows, /*next=*/false);
    const DocumentColumn& column = options_.documents->tensors.at(name);
    if (column.content == DocumentTensor::Padding) return inputs_of(rows, -1).ge(0).to(column.mask_dtype);
    const at::Tensor positions = positions_of(rows);
    if (column.content == DocumentTensor::Positions) return positions;
    const at::Tensor mask = models::document_mask(positions);
    return column.has_head_dim ? in_dtype(mask, column.mask_dtype).unsqueeze(1)
                               : in_dtype(mask, column.mask_dtype);
  }

  // The tokens of the stream up to `end` that are `offset` after those of the input.
  at::Tensor tokens_of(const std::vector<std::int64_t>& rows, std::int64_t offset, std::int64_t end,
                       std::int64_t fill) const {
    const at::Tensor tensor = at::full({static_cast<std::int64_t>(rows.size()), options_.length}, fill,
                                       at::TensorOptions(at::kLong));
    auto* row_data = tensor.mutable_data_ptr<std::int64_t>();
    for (const std::int64_t row : rows) {
      const std::int64_t begin = row * options_.length + offset;
      const std::span<std::int64_t> tokens(row_data,
                                           static_cast<std::size_t>(std::min(options_.length, end - begin)));
      stream_->read(begin, tokens);
      check(begin, tokens);
      row_data += options_.length;
    }
    return tensor;
  }

  // The last token of the stream is only a target, or the label of the position before it.
  at::Tensor inputs_of(const std::vector<std::int64_t>& rows, std::int64_t fill) const {
    const bool has_last = options_.labels && options_.labels->next;
    return tokens_of(rows, 0, stream_->size() - (has_last ? 0 : 1), fill);
  }

  // The token after each position, or with `next` that of the position, which is the label of the one before.
  at::Tensor labels_of(const std::vector<std::int64_t>& rows, bool next) const {
    const at::Tensor labels =
        next ? inputs_of(rows, kPaddingLabel) : tokens_of(rows, 1, stream_->size(), kPaddingLabel);
    const std::optional<DocumentOptions>& documents = options_.documents;
    if (!documents || !documents->separator || documents->boundary_targets) return labels;
    return labels.masked_fill(next ? after_separators(rows) : separators_of(rows), kPaddingLabel);
  }

  at::Tensor separators_of(const std::vector<std::int64_t>& rows) const {
    return inputs_of(rows, 0).eq(*options_.documents->separator);
  }

  at::Tensor after_separators(const std::vector<std::int64_t>& rows) const {
    return at::constant_pad_nd(separators_of(rows).slice(1, 0, -1), {1, 0}, 0);
  }

  at::Tensor positions_of(const std::vector<std::int64_t>& rows) const {
    const at::Tensor index = at::arange(options_.length, at::kLong);
    if (!options_.documents->separator)
      return index.unsqueeze(0).repeat({static_cast<std::int64_t>(rows.size()), 1});
    // A document starts in the first column and after each separator; the maximum so far is the latest start.
    return index - std::get<0>((after_separators(rows) * index).cummax(1));
  }

  static at::Tensor in_dtype(const at::Tensor& mask, at::ScalarType dtype) {
    if (dtype == at::kBool) return mask;
    return at::zeros(mask.sizes(), at::TensorOptions(dtype))
        .masked_fill(mask.logical_not(), -std::numeric_limits<double>::infinity());
  }

  void check(std::int64_t begin, std::span<const std::int64_t> tokens) const {
    if (!options_.vocabulary) return;
    const auto wrong = std::find_if(tokens.begin(), tokens.end(),
                                    [&](std::int64_t token) { return token >= *options_.vocabulary; });
    if (wrong == tokens.end()) return;
    throw UsageError(str_cat(stream_->location(begin + (wrong - tokens.begin())), " is ", *wrong,
                             ", but the vocabulary has ", *options_.vocabulary, " tokens"),
                     {}, str_cat("use a vocabulary of at least ", *wrong + 1));
  }

  std::shared_ptr<const TokenStream> stream_;
  SequenceOptions options_;
};

}  // namespace

std::shared_ptr<const TensorTable> sequence_table(std::shared_ptr<const TokenStream> stream,
                                                  const SequenceOptions& options) {
  return std::make_shared<SequenceTable>(std::move(stream), options);
}

}  // namespace penstock::train
