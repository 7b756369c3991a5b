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
    if (options.documents)
      for (const auto& [name, tensor] : options.documents->tensors)
        columns[name] = column_of(tensor, rows, options.length);
    return columns;
  }

  static TableColumn column_of(const DocumentColumn& column, std::int64_t rows, std::int64_t length) {
    if (column.content == DocumentTensor::Positions) return {at::kLong, {rows, length}};
    if (column.has_head_dim) return {column.mask_dtype, {rows, 1, length, length}};
    return {column.mask_dtype, {rows, length, length}};
  }

  at::Tensor read(const std::string& name, const std::vector<std::int64_t>& rows) const override {
    if (name == kTargets) {
      const at::Tensor targets = tokens_of(rows, 1, kPaddingLabel);
      const bool all = !options_.documents || options_.documents->boundary_targets;
      return all ? targets : targets.masked_fill(separators_of(rows), kPaddingLabel);
    }
    if (name == options_.input) return tokens_of(rows, 0, 0);
    const DocumentColumn& column = options_.documents->tensors.at(name);
    const at::Tensor positions = positions_of(rows);
    if (column.content == DocumentTensor::Positions) return positions;
    const at::Tensor mask = models::document_mask(positions);
    return column.has_head_dim ? in_dtype(mask, column.mask_dtype).unsqueeze(1)
                               : in_dtype(mask, column.mask_dtype);
  }

  // The tokens that are `offset` after those of the input. The last token of the stream is only a target.
  at::Tensor tokens_of(const std::vector<std::int64_t>& rows, std::int64_t offset, std::int64_t fill) const {
    const at::Tensor tensor = at::full({static_cast<std::int64_t>(rows.size()), options_.length}, fill,
                                       at::TensorOptions(at::kLong));
    auto* row_data = tensor.mutable_data_ptr<std::int64_t>();
    for (const std::int64_t row : rows) {
      const std::int64_t begin = row * options_.length;
      const std::int64_t count = std::min(options_.length, stream_->size() - 1 - begin);
      const std::span<std::int64_t> tokens(row_data, static_cast<std::size_t>(count));
      stream_->read(begin + offset, tokens);
      check(begin + offset, tokens);
      row_data += options_.length;
    }
    return tensor;
  }

  at::Tensor separators_of(const std::vector<std::int64_t>& rows) const {
    return tokens_of(rows, 0, 0).eq(options_.documents->separator);
  }

  at::Tensor positions_of(const std::vector<std::int64_t>& rows) const {
    const at::Tensor index = at::arange(options_.length, at::kLong);
    // A document starts in the first column and after each separator; the maximum so far is the latest start.
    const at::Tensor after = at::constant_pad_nd(separators_of(rows).slice(1, 0, -1), {1, 0}, 0);
    return index - std::get<0>((after * index).cummax(1));
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
