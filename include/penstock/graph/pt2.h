// Import of what Python's `torch.export.save` writes: the graph at once, the weights when they are asked for.
#pragma once

#include <penstock/graph/ir.h>

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace penstock {

class Pt2Archive {
 public:
  //! Reads the graph. ParseError for a damaged file, UsageError naming operator and module for what a graph
  //! cannot hold.
  explicit Pt2Archive(const std::string& file);
  ~Pt2Archive();
  Pt2Archive(Pt2Archive&&) noexcept;
  Pt2Archive& operator=(Pt2Archive&&) noexcept;

  const Graph& graph() const;

  //! The tensor of a parameter, buffer or constant by any of its names, freshly read on each call.
  at::Tensor load(const std::string& name) const;

  //! The tensors of the slots, in their order; parameters require gradients as they did in Python.
  std::vector<at::Tensor> load(const std::vector<Slot>& slots) const;

 private:
  struct Content;
  std::unique_ptr<Content> content_;
};

//! The archive's schema version that we were written for; later minor versions are read as well.
inline constexpr int pt2_schema_major = 8;

}  // namespace penstock
