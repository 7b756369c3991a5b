// Serves the rows of a table as training data.
#include "base/text.h"

#include <penstock/base/error.h>
#include <penstock/train/data.h>

#include <ATen/core/Tensor.h>

#include <algorithm>

namespace penstock::train {
namespace {

constexpr const char* kTarget = "target";

// Returns the number of rows of the tensors, which must be equal.
std::int64_t checked_rows(const TensorTable& table, const std::vector<std::string>& wanted) {
  std::vector<std::string> have;
  for (const auto& [name, column] : table.columns()) have.push_back(name);
  std::optional<std::int64_t> rows;
  for (const std::string& name : wanted) {
    const auto it = table.columns().find(name);
    if (it == table.columns().end())
      throw UsageError("the data has no tensor " + quote(name) + "; it has " + join(have, ", "), {},
                       "the data needs " + join(wanted, ", "));
    const std::vector<std::int64_t>& shape = it->second.shape;
    if (shape.empty()) throw ShapeError("the data's " + quote(name) + " has no batch dim");
    if (!rows) rows = shape[0];
    if (shape[0] != *rows)
      throw ShapeError(str_cat("the data's ", quote(name), " has ", shape[0], " examples, ",
                               quote(wanted.front()), " has ", *rows));
  }
  table.check_rows_match(wanted);
  return rows.value_or(0);
}

// Whether these tensors of two tables have equal rows: the same dtypes and shapes.
bool have_equal_rows(const TensorTable& table, const TensorTable& other,
                     const std::vector<std::string>& names) {
  return std::all_of(names.begin(), names.end(), [&](const std::string& name) {
    const TableColumn &a = table.columns().at(name), &b = other.columns().at(name);
    return a.dtype == b.dtype &&
           std::equal(a.shape.begin() + 1, a.shape.end(), b.shape.begin() + 1, b.shape.end());
  });
}

class TensorData : public DataSource {
 public:
  TensorData(std::shared_ptr<const TensorTable> table, const TensorDataOptions& options)
      : table_(std::move(table)), options_(options) {
    std::vector<std::string> wanted;
    for (const auto& names : {options.positional, options.keywords})
      for (const std::string& name : names)
        if (!options.constants.contains(name)) wanted.push_back(name);
    if (options.has_target) wanted.emplace_back(kTarget);
    const std::int64_t count = checked_rows(*table_, wanted);
    if (!(options.validation_fraction >= 0 && options.validation_fraction < 1))
      throw UsageError("the validation fraction must be at least 0 and below 1");
    kept_ = static_cast<std::int64_t>(static_cast<double>(count) * options.validation_fraction);
    validation_rows_ = options.validation ? checked_rows(*options.validation, wanted) : kept_;
    has_fixed_shapes_ = !options.validation || have_equal_rows(*table_, *options.validation, wanted);
    if (count - kept_ < 1) throw UsageError("the data has no examples");
    epochs_.emplace(count - kept_, options.order);
    if (options.order.shuffle && kept_ > 0) selection_.emplace(count, options.order.seed, 0);
  }

  Batch training(std::int64_t step, std::int64_t batch, Rows rows) const override {
    return take(*table_, training_examples(step, batch, rows));
  }
  std::int64_t training_rows(std::int64_t step, std::int64_t batch) const override {
    return epochs_->rows(step, batch);
  }
  c10::IValue training_target(std::int64_t step, std::int64_t batch) const override {
    if (!options_.has_target) return {};
    return pick(*table_, kTarget, training_examples(step, batch, {0, training_rows(step, batch)}));
  }
  std::optional<std::int64_t> steps_of(std::int64_t epochs, std::int64_t batch) const override {
    return epochs_->steps(epochs, batch);
  }
  std::int64_t validation_rows() const override { return validation_rows_; }
  bool has_fixed_shapes() const override { return has_fixed_shapes_; }
  Batch validation(Rows rows) const override {
    std::vector<std::int64_t> examples;
    for (std::int64_t row = rows.begin; row < rows.end; ++row)
      examples.push_back(options_.validation ? row
                         : selection_        ? (*selection_)[row]
                                             : epochs_->examples() + row);
    return take(options_.validation ? *options_.validation : *table_, examples);
  }

 private:
  // A random selection consists of the first numbers of a permutation; training uses the others.
  std::vector<std::int64_t> training_examples(std::int64_t step, std::int64_t batch, Rows rows) const {
    std::vector<std::int64_t> examples = epochs_->examples_of(step, batch, rows.begin, rows.end);
    if (selection_)
      for (std::int64_t& example : examples) example = (*selection_)[kept_ + example];
    return examples;
  }
  at::Tensor pick(const TensorTable& table, const std::string& name,
                  const std::vector<std::int64_t>& examples) const {
    const at::Tensor tensor = table.take(name, examples);
    const auto dtype = options_.dtypes.find(name);
    return dtype == options_.dtypes.end() ? tensor : tensor.to(dtype->second);
  }
  c10::IValue argument(const TensorTable& table, const std::string& name,
                       const std::vector<std::int64_t>& examples) const {
    const auto constant = options_.constants.find(name);
    return constant != options_.constants.end() ? constant->second : pick(table, name, examples);
  }
  Batch take(const TensorTable& table, const std::vector<std::int64_t>& examples) const {
    Batch batch;
    for (const std::string& name : options_.positional) batch.args.push_back(argument(table, name, examples));
    for (const std::string& name : options_.keywords)
      batch.kwargs.emplace(name, argument(table, name, examples));
    if (options_.has_target) batch.target = pick(table, kTarget, examples);
    batch.names = options_.positional;
    batch.examples = static_cast<std::int64_t>(examples.size());
    if (options_.tokens_per_row) batch.tokens = batch.examples * *options_.tokens_per_row;
    return batch;
  }

  std::shared_ptr<const TensorTable> table_;
  TensorDataOptions options_;
  std::int64_t kept_ = 0, validation_rows_ = 0;  // rows of the table, and of all, that validation uses
  bool has_fixed_shapes_ = true;
  std::optional<Epochs> epochs_;
  std::optional<Permutation> selection_;  // of validation rows, if they are random
};

}  // namespace

std::unique_ptr<DataSource> tensor_data(std::shared_ptr<const TensorTable> table,
                                        const TensorDataOptions& options) {
  return std::make_unique<TensorData>(std::move(table), options);
}

std::unique_ptr<DataSource> tensor_data(std::map<std::string, at::Tensor> tensors,
                                        const TensorDataOptions& options) {
  return tensor_data(memory_table(std::move(tensors)), options);
}

}  // namespace penstock::train
