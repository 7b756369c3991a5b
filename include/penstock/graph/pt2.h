// Imports archives written by Python's `torch.export.save`. Reads the graph at once, the weights on demand.
#pragma once

#include <penstock/graph/ir.h>

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace penstock::graph {

//! An open archive.
class Pt2Archive {
 public:
  //! Reads the graph. Throws StorageError if the file cannot be opened or read, ParseError if it is damaged,
  //! and UsageError, naming operator and module, for anything a graph cannot represent.
  explicit Pt2Archive(const std::filesystem::path& file);
  ~Pt2Archive();
  Pt2Archive(Pt2Archive&&) noexcept;
  Pt2Archive& operator=(Pt2Archive&&) noexcept;

  //! The graph of the complete model.
  const Graph& graph() const;

  //! Reads a parameter, buffer or constant by any of its names. Every call reads the file again.
  at::Tensor load(const std::string& name) const;

  //! Reads the tensors of the slots, in slot order. Parameters keep the `requires_grad` of the export.
  std::vector<at::Tensor> load(const std::vector<Slot>& slots) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

//! The supported major version of the archive schema; any minor version is accepted.
inline constexpr int kPt2SchemaMajor = 8;

}  // namespace penstock::graph
