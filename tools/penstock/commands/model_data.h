// Reads the examples of an exported model from a safetensors file whose tensors are named after the model's
// inputs, and names the model's outputs.
#pragma once

#include <penstock/graph/ir.h>
#include <penstock/value/microbatch.h>

#include <ATen/core/Tensor.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

namespace penstock::tool {

struct ModelData {
  value::Args args;
  value::Kwargs kwargs;
  std::vector<c10::IValue> leaves;  //!< the flattened (args, kwargs)
  std::int64_t rows = 0;

  //! Returns `requested` if set; else the count that the model's fixed batch needs, or one per rank. Throws
  //! UsageError if the rows cannot be split that way.
  int microbatches_for(const graph::Graph& graph, std::optional<std::int64_t> requested, int ranks) const;
  //! Returns the rows of a data-parallel rank, in multiples of the fixed batch if the model has one. Throws
  //! UsageError if there are fewer batches than ranks.
  ModelData part(const graph::Graph& graph, int ranks, int rank) const;
  //! The leaves of the first microbatch, on the device.
  std::vector<c10::IValue> example(int microbatches, c10::Device device = c10::kCPU) const;
};

//! Returns the given rows of each leaf. Leaves without rows are returned unchanged.
std::vector<c10::IValue> rows_of(const std::vector<c10::IValue>& leaves, std::int64_t begin,
                                 std::int64_t count);

//! Reads the model's inputs from a safetensors file and casts integers to the model's dtypes. Throws
//! UsageError if inputs are missing or the file is not a valid safetensors file.
ModelData read_model_data(const graph::Graph& graph, const std::string& path);

//! Returns the tensors of a merged output, keyed by their path in it (`output.logits`). Scalars with one
//! value per microbatch are averaged, weighted by rows.
std::map<std::string, at::Tensor> named_outputs(const graph::Graph& graph, const c10::IValue& outputs,
                                                const std::vector<std::int64_t>& rows);

//! Concatenates the outputs of all data-parallel ranks. `rows` is the number of rows per rank.
std::map<std::string, at::Tensor> join_outputs(const std::vector<std::map<std::string, at::Tensor>>& parts,
                                               const std::vector<std::int64_t>& rows);

}  // namespace penstock::tool
