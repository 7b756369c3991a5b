// Examples for an exported model, from a safetensors file whose tensors are named like the model's inputs;
// and its outputs by name.
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
  Args args;
  Kwargs kwargs;
  std::vector<c10::IValue> leaves;  //!< of (args, kwargs)
  std::int64_t rows = 0;

  //! As asked for; without, as many as the model's fixed batch needs, or one for each rank. UsageError where
  //! the rows cannot be cut so.
  int microbatches_for(const Graph& graph, std::optional<std::int64_t> asked, int ranks) const;
  //! Those of a data-parallel rank; whole batches, where the model was exported with a fixed one. UsageError
  //! where there are fewer than ranks.
  ModelData part(const Graph& graph, int ranks, int rank) const;
  //! The leaves of the first microbatch.
  std::vector<c10::IValue> example(int microbatches) const;
};

//! These rows of every leaf that has rows.
std::vector<c10::IValue> rows_of(const std::vector<c10::IValue>& leaves, std::int64_t begin,
                                 std::int64_t count);

//! UsageError names the inputs that the file lacks, or says why it is not a safetensors file. Integers are
//! cast to the model's dtypes.
ModelData read_model_data(const Graph& graph, const std::string& path);

//! The tensors of a merged output by their place in it (`output.logits`). Numbers that came once for each
//! microbatch become their mean, weighted by rows.
std::map<std::string, at::Tensor> named_outputs(const Graph& graph, const c10::IValue& outputs,
                                                const std::vector<std::int64_t>& rows);

//! The same outputs of all data-parallel ranks, which had so many rows, as one.
std::map<std::string, at::Tensor> join_outputs(const std::vector<std::map<std::string, at::Tensor>>& parts,
                                               const std::vector<std::int64_t>& rows);

}  // namespace penstock::tool
