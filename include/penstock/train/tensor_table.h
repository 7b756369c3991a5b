// Named tensors whose dim 0 counts the examples of a data set, in memory or in files.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace penstock::train {

//! The metadata of a tensor of a table.
struct TableColumn {
  at::ScalarType dtype = at::kFloat;
  std::vector<std::int64_t> shape;  //!< of all rows; empty for a scalar, which has no rows
};

//! Named tensors of which single rows can be read. Methods may be called by several threads.
class TensorTable {
 public:
  virtual ~TensorTable() = default;
  //! The metadata of the tensors, by name.
  const std::map<std::string, TableColumn>& columns() const { return columns_; }
  //! Returns the given rows (indices in dim 0) of a tensor, in this order. Throws UsageError if there is no
  //! such tensor or row.
  at::Tensor take(const std::string& name, const std::vector<std::int64_t>& rows) const;
  //! Throws UsageError, which names the file, if rows of these tensors are not stored side by side: if one of
  //! several files has different numbers of rows of them. Requires tensors with rows.
  virtual void check_rows_match(const std::vector<std::string>& /*names*/) const {}

 protected:
  explicit TensorTable(std::map<std::string, TableColumn> columns) : columns_(std::move(columns)) {}

 private:
  virtual at::Tensor read(const std::string& name, const std::vector<std::int64_t>& rows) const = 0;

  std::map<std::string, TableColumn> columns_;
};

//! A table of tensors in memory.
std::shared_ptr<const TensorTable> memory_table(std::map<std::string, at::Tensor> tensors);

//! A table of safetensors files, whose rows follow each other in the order of the files. Reads the headers
//! now and rows on request. Every file must have the same tensors, with the same dtypes and shapes except for
//! dim 0; scalars have no rows. Throws UsageError, which names the file, if they differ; StorageError and
//! ParseError as checkpoint::SafetensorsFile.
std::shared_ptr<const TensorTable> safetensors_table(const std::vector<std::filesystem::path>& files);

}  // namespace penstock::train
