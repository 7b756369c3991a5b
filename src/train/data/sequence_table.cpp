// Sequences of a stream of tokens as rows of a table.
#include "base/text.h"

#include <penstock/base/error.h>
#include <penstock/train/tokens.h>

#include <ATen/ops/full.h>

#include <algorithm>

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
    return {{options.input, column}, {kTargets, column}};
  }

  at::Tensor read(const std::string& name, const std::vector<std::int64_t>& rows) const override {
    const bool target = name == kTargets;
    const at::Tensor tensor = at::full({static_cast<std::int64_t>(rows.size()), options_.length},
                                       target ? kPaddingLabel : 0, at::TensorOptions(at::kLong));
    auto* row_data = tensor.mutable_data_ptr<std::int64_t>();
    for (const std::int64_t row : rows) {
      // The last token of the stream is only a target.
      const std::int64_t begin = row * options_.length;
      const std::int64_t count = std::min(options_.length, stream_->size() - 1 - begin);
      const std::span<std::int64_t> tokens(row_data, static_cast<std::size_t>(count));
      stream_->read(begin + (target ? 1 : 0), tokens);
      check(begin + (target ? 1 : 0), tokens);
      row_data += options_.length;
    }
    return tensor;
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
