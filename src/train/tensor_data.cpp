// Tensors of a file as training data: examples in order, round and round.
#include <penstock/base/error.h>
#include <penstock/base/text.h>
#include <penstock/train/data.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/index_select.h>

#include <algorithm>

namespace penstock::train {
namespace {

constexpr const char* kTarget = "target";

class TensorData : public DataSource {
 public:
  TensorData(std::map<std::string, at::Tensor> tensors, const TensorDataOptions& options)
      : tensors_(std::move(tensors)), options_(options) {
    std::vector<std::string> wanted = options.positional, have;
    wanted.insert(wanted.end(), options.keywords.begin(), options.keywords.end());
    wanted.emplace_back(kTarget);
    for (const auto& [name, tensor] : tensors_) have.push_back(name);
    for (const std::string& name : wanted) {
      const auto it = tensors_.find(name);
      if (it == tensors_.end())
        throw UsageError("the data has no tensor " + quote(name) + "; it has " + join(have, ", "), {},
                         "the model takes " + join(wanted, ", ") + " (the last is the label)");
      if (it->second.dim() == 0)
        throw ShapeError("the data's " + quote(name) + " has no dim that counts examples");
      if (count_ == 0) count_ = it->second.size(0);
      if (it->second.size(0) != count_)
        throw ShapeError("the data's " + quote(name) + " has " + std::to_string(it->second.size(0)) +
                         " examples, " + quote(wanted.front()) + " has " + std::to_string(count_));
    }
    if (!(options.validation >= 0 && options.validation < 1))
      throw UsageError("the share that is kept for validation must be at least 0 and below 1");
    const auto kept = static_cast<std::int64_t>(static_cast<double>(count_) * options.validation);
    training_ = count_ - kept;
    if (training_ < 1) throw UsageError("the data has no examples");
  }

  Batch training(std::int64_t step, std::int64_t batch, Rows rows) const override {
    return take((step - 1) * batch, rows, 0, training_);
  }
  Batch validation(std::int64_t index, std::int64_t batch, Rows rows) const override {
    return take(index * batch, rows, training_, count_ - training_);
  }
  bool has_validation() const override { return training_ < count_; }

 private:
  Batch take(std::int64_t from, Rows rows, std::int64_t first, std::int64_t count) const {
    const at::Tensor index =
        at::arange(from + rows.begin, from + rows.end, at::kLong).remainder(count).add(first);
    const auto pick = [&](const std::string& name) { return at::index_select(tensors_.at(name), 0, index); };
    Batch batch;
    for (const std::string& name : options_.positional) batch.args.emplace_back(pick(name));
    for (const std::string& name : options_.keywords) batch.kwargs.emplace(name, pick(name));
    batch.target = pick(kTarget);
    batch.examples = rows.end - rows.begin;
    return batch;
  }

  std::map<std::string, at::Tensor> tensors_;
  TensorDataOptions options_;
  std::int64_t count_ = 0, training_ = 0;
};

}  // namespace

std::unique_ptr<DataSource> tensor_data(std::map<std::string, at::Tensor> tensors,
                                        const TensorDataOptions& options) {
  return std::make_unique<TensorData>(std::move(tensors), options);
}

}  // namespace penstock::train
