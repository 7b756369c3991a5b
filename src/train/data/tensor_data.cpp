// Serves tensors as training data: examples in order, cyclically.
#include "base/text.h"

#include <penstock/base/error.h>
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
      if (it->second.dim() == 0) throw ShapeError("the data's " + quote(name) + " has no batch dim");
      if (count_ == 0) count_ = it->second.size(0);
      if (it->second.size(0) != count_)
        throw ShapeError(str_cat("the data's ", quote(name), " has ", it->second.size(0), " examples, ",
                                 quote(wanted.front()), " has ", count_));
    }
    if (!(options.validation_fraction >= 0 && options.validation_fraction < 1))
      throw UsageError("the validation fraction must be at least 0 and below 1");
    const auto kept = static_cast<std::int64_t>(static_cast<double>(count_) * options.validation_fraction);
    training_ = count_ - kept;
    if (training_ < 1) throw UsageError("the data has no examples");
  }

  Batch training(std::int64_t step, std::int64_t batch, Rows rows) const override {
    return take(indices((step - 1) * batch, rows));
  }
  c10::IValue training_target(std::int64_t step, std::int64_t batch) const override {
    return pick(kTarget, indices((step - 1) * batch, {0, batch}));
  }
  std::int64_t validation_rows() const override { return count_ - training_; }
  Batch validation(Rows rows) const override {
    return take(at::arange(training_ + rows.begin, training_ + rows.end, at::kLong));
  }

 private:
  at::Tensor indices(std::int64_t from, Rows rows) const {
    return at::arange(from + rows.begin, from + rows.end, at::kLong).remainder(training_);
  }
  at::Tensor pick(const std::string& name, const at::Tensor& index) const {
    return at::index_select(tensors_.at(name), 0, index);
  }
  Batch take(const at::Tensor& index) const {
    Batch batch;
    for (const std::string& name : options_.positional) batch.args.emplace_back(pick(name, index));
    for (const std::string& name : options_.keywords) batch.kwargs.emplace(name, pick(name, index));
    batch.target = pick(kTarget, index);
    batch.names = options_.positional;
    batch.examples = index.size(0);
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
