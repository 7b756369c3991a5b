// Serves the rows of a table as training data.
#include "base/text.h"

#include <penstock/base/error.h>
#include <penstock/train/data.h>

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <sstream>

namespace penstock::train {
namespace {

constexpr const char* kTarget = "target";

// Where a run continues: epoch and row, and what the order of the rows depends on.
struct StoredPosition {
  std::int64_t epoch = 1, row = 0, examples = 0;
  bool shuffled = false;
  std::uint64_t seed = 0;
};

std::string to_text(const StoredPosition& position) {
  return str_cat("epoch ", position.epoch, " row ", position.row, " of ", position.examples,
                 position.shuffled ? str_cat(" seed ", position.seed) : std::string(" in file order"));
}

StoredPosition parse_position(const std::string& text) {
  StoredPosition position;
  std::istringstream words(text);
  std::string epoch, row, of, order;
  words >> epoch >> position.epoch >> row >> position.row >> of >> position.examples >> order;
  position.shuffled = order == "seed";
  if (position.shuffled) words >> position.seed;
  const bool valid = words && epoch == "epoch" && row == "row" && of == "of" &&
                     (position.shuffled || order == "in") && position.epoch >= 1 && position.row >= 0 &&
                     position.row < position.examples;
  if (valid) return position;
  throw ParseError(quote(text, 80) + " is not a position in the data");
}

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
    if (options.labels && std::find(wanted.begin(), wanted.end(), options.labels->name) == wanted.end())
      throw UsageError("the labels " + quote(options.labels->name) + " are not an input of the model");
    const std::int64_t count = checked_rows(*table_, wanted);
    if (!(options.validation_fraction >= 0 && options.validation_fraction < 1))
      throw UsageError("the validation fraction must be at least 0 and below 1");
    kept_ = static_cast<std::int64_t>(static_cast<double>(count) * options.validation_fraction);
    validation_rows_ = options.validation ? checked_rows(*options.validation, wanted) : kept_;
    has_fixed_shapes_ = !options.validation || have_equal_rows(*table_, *options.validation, wanted);
    if (count - kept_ < 1) throw UsageError("the data has no examples");
    epochs_.emplace(count - kept_, options.order, options.start);
    if (options.order.shuffle && kept_ > 0) selection_.emplace(count, options.order.seed, 0);
  }

  Batch training(std::int64_t step, std::int64_t batch, Rows rows) const override {
    return take(*table_, training_examples(step, batch, rows));
  }
  std::int64_t training_rows(std::int64_t step, std::int64_t batch) const override {
    return epochs_->rows(step, batch);
  }
  c10::IValue training_target(std::int64_t step, std::int64_t batch) const override {
    return target(*table_, training_examples(step, batch, {0, training_rows(step, batch)}));
  }
  std::optional<std::int64_t> steps_of(std::int64_t epochs, std::int64_t batch) const override {
    return epochs_->steps(epochs, batch);
  }
  std::string position_after(std::int64_t step, std::int64_t batch) const override {
    const EpochPosition after = epochs_->after(step, batch);
    return to_text(
        {after.epoch, after.row, epochs_->examples(), options_.order.shuffle, options_.order.seed});
  }
  // Another order has no unread rows of the stored epoch, so the run starts with the next one.
  std::unique_ptr<DataSource> continued(std::int64_t step, const std::string& text) const override {
    const StoredPosition stored = parse_position(text);
    const bool same = stored.examples == epochs_->examples() && stored.shuffled == options_.order.shuffle &&
                      (!stored.shuffled || stored.seed == options_.order.seed);
    TensorDataOptions options = options_;
    options.start = same ? EpochPosition{step, stored.epoch, stored.row}
                         : EpochPosition{step, stored.epoch + (stored.row > 0 ? 1 : 0), 0};
    return std::make_unique<TensorData>(table_, options);
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
  // The labels of a model that computes its own loss serve as the target by which the loss is weighted.
  c10::IValue target(const TensorTable& table, const std::vector<std::int64_t>& examples) const {
    if (options_.has_target) return pick(table, kTarget, examples);
    if (!options_.labels) return {};
    const at::Tensor labels = pick(table, options_.labels->name, examples);
    return options_.labels->next ? labels.slice(-1, 1) : labels;
  }
  Batch take(const TensorTable& table, const std::vector<std::int64_t>& examples) const {
    Batch batch;
    for (const std::string& name : options_.positional) batch.args.push_back(argument(table, name, examples));
    for (const std::string& name : options_.keywords)
      batch.kwargs.emplace(name, argument(table, name, examples));
    batch.target = target(table, examples);
    if (options_.labels) batch.labels = options_.labels->name;
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
