// Reads rows of tensors in memory and in safetensors files.
#include "base/text.h"
#include "checkpoint/safetensors/header.h"

#include <penstock/base/error.h>
#include <penstock/checkpoint/safetensors.h>
#include <penstock/train/tensor_table.h>
#include <penstock/value/tensor_meta.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <span>

namespace penstock::train {
namespace {

class MemoryTable : public TensorTable {
 public:
  explicit MemoryTable(std::map<std::string, at::Tensor> tensors)
      : TensorTable(columns_of(tensors)), tensors_(std::move(tensors)) {}

 private:
  static std::map<std::string, TableColumn> columns_of(const std::map<std::string, at::Tensor>& tensors) {
    std::map<std::string, TableColumn> columns;
    for (const auto& [name, tensor] : tensors) columns[name] = {tensor.scalar_type(), tensor.sizes().vec()};
    return columns;
  }
  at::Tensor read(const std::string& name, const std::vector<std::int64_t>& rows) const override {
    return at::index_select(tensors_.at(name), 0, at::tensor(rows, at::kLong));
  }

  std::map<std::string, at::Tensor> tensors_;
};

TableColumn column_of(const checkpoint::SafetensorsEntry& entry) {
  return {entry.dtype, entry.shape};
}

// The dtype and the shape of one row: `float32[n, 3, 8, 8]`.
std::string row_text(const TableColumn& column) {
  std::vector<std::string> sizes;
  for (const std::int64_t size : column.shape) sizes.push_back(sizes.empty() ? "n" : std::to_string(size));
  return value::dtype_name(column.dtype) + "[" + join(sizes, ", ") + "]";
}

bool same_rows(const TableColumn& a, const TableColumn& b) {
  if (a.dtype != b.dtype || a.shape.size() != b.shape.size()) return false;
  return a.shape.empty() || std::equal(a.shape.begin() + 1, a.shape.end(), b.shape.begin() + 1);
}

class FileTable : public TensorTable {
 public:
  explicit FileTable(std::vector<checkpoint::SafetensorsFile> files)
      : TensorTable(columns_of(files)), files_(std::move(files)) {
    for (const auto& [name, column] : columns()) {
      std::vector<std::int64_t>& ends = ends_[name];
      std::int64_t end = 0;
      for (const checkpoint::SafetensorsFile& file : files_) {
        const std::vector<std::int64_t>& shape = file.entry(name).shape;
        ends.push_back(end += shape.empty() ? 0 : shape[0]);
      }
    }
  }

  // Row i of every tensor must come from the same file.
  void check_rows_match(const std::vector<std::string>& names) const override {
    for (const checkpoint::SafetensorsFile& file : files_) {
      const auto rows_of = [&](const std::string& name) { return file.entry(name).shape.at(0); };
      for (const std::string& name : names)
        if (rows_of(name) != rows_of(names.front()))
          throw UsageError(str_cat("the tensor ", quote(name), " has ", counted(rows_of(name), "row"), " in ",
                                   quote(file.path().string(), 200), ", but ", quote(names.front()), " has ",
                                   rows_of(names.front())),
                           {}, "store the same number of rows (dim 0) of every tensor in each file");
    }
  }

 private:
  static std::map<std::string, TableColumn> columns_of(
      const std::vector<checkpoint::SafetensorsFile>& files) {
    std::map<std::string, TableColumn> columns;
    for (const checkpoint::SafetensorsEntry& entry : files[0].entries())
      columns[entry.name] = column_of(entry);
    const std::string first = quote(files[0].path().string(), 200);
    for (auto file = files.begin() + 1; file != files.end(); ++file) {
      const std::string path = quote(file->path().string(), 200);
      for (const checkpoint::SafetensorsEntry& entry : file->entries())
        if (!columns.contains(entry.name))
          throw UsageError(
              path + " has a tensor " + quote(entry.name) + ", which " + first + " does not have", {},
              "store the same tensors in every file");
      for (auto& [name, column] : columns) {
        if (!file->has(name))
          throw UsageError(path + " has no tensor " + quote(name) + ", which " + first + " has", {},
                           "store the same tensors in every file");
        const TableColumn here = column_of(file->entry(name));
        if (!same_rows(column, here))
          throw UsageError("the tensor " + quote(name) + " is " + row_text(here) + " in " + path + ", but " +
                               row_text(column) + " in " + first,
                           {}, "store the same dtype and shape, except for dim 0, in every file");
        if (!column.shape.empty()) column.shape[0] += here.shape[0];
      }
    }
    return columns;
  }

  // Consecutive rows are read at once.
  at::Tensor read(const std::string& name, const std::vector<std::int64_t>& rows) const override {
    const TableColumn& column = columns().at(name);
    const std::vector<std::int64_t>& ends = ends_.at(name);
    std::vector<std::int64_t> shape = column.shape;
    shape[0] = static_cast<std::int64_t>(rows.size());
    const at::Tensor tensor = at::empty(shape, at::TensorOptions(column.dtype));
    if (tensor.numel() == 0) return tensor;
    const std::size_t row_bytes = tensor.nbytes() / rows.size();
    auto* const bytes = static_cast<std::uint8_t*>(tensor.mutable_data_ptr());
    for (std::size_t i = 0; i < rows.size();) {
      const auto index =
          static_cast<std::size_t>(std::upper_bound(ends.begin(), ends.end(), rows[i]) - ends.begin());
      std::size_t count = 1;
      while (i + count < rows.size() && rows[i + count] == rows[i] + static_cast<std::int64_t>(count) &&
             rows[i + count] < ends[index])
        ++count;
      const std::int64_t first = rows[i] - (index == 0 ? 0 : ends[index - 1]);
      const std::span<std::uint8_t> target(bytes + i * row_bytes, count * row_bytes);
      const checkpoint::SafetensorsFile& file = files_[index];
      file.read(file.entry(name), static_cast<std::uint64_t>(first) * row_bytes, target);
      checkpoint::check_bools(column.dtype, target,
                              quote(file.path().string(), 200) + ": tensor " + quote(name, 200));
      i += count;
    }
    return tensor;
  }

  std::vector<checkpoint::SafetensorsFile> files_;
  std::map<std::string, std::vector<std::int64_t>> ends_;  // by name: the row after the last one of each file
};

}  // namespace

at::Tensor TensorTable::take(const std::string& name, const std::vector<std::int64_t>& rows) const {
  const auto column = columns_.find(name);
  if (column == columns_.end()) throw UsageError("the data has no tensor " + quote(name));
  if (column->second.shape.empty())
    throw UsageError("the data's " + quote(name) + " is a scalar, which has no rows");
  const std::int64_t count = column->second.shape[0];
  for (const std::int64_t row : rows)
    if (row < 0 || row >= count)
      throw UsageError(str_cat("the data's ", quote(name), " has ", count, " rows, but no row ", row));
  return read(name, rows);
}

std::shared_ptr<const TensorTable> memory_table(std::map<std::string, at::Tensor> tensors) {
  return std::make_shared<MemoryTable>(std::move(tensors));
}

std::shared_ptr<const TensorTable> safetensors_table(const std::vector<std::filesystem::path>& files) {
  if (files.empty()) throw UsageError("a table needs at least one file");
  std::vector<checkpoint::SafetensorsFile> opened;
  opened.reserve(files.size());
  for (const std::filesystem::path& file : files) opened.emplace_back(file);
  return std::make_shared<FileTable>(std::move(opened));
}

}  // namespace penstock::train
