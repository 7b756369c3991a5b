// What can be known of an exported model and a file of examples before anything runs: for every command that
// takes both.
#pragma once

#include <penstock/base/error.h>
#include <penstock/graph/pt2.h>
#include <penstock/train/model.h>

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <vector>

namespace penstock::tool {

//! The error as bad usage (exit code 2), on one line, with this hint or its own.
[[noreturn]] void throw_as_usage(const std::exception& error, const std::string& hint = "");

//! Runs the checks; what is wrong with files, shapes and checkpoints is the caller's mistake then.
template <class Checks>
auto as_usage(const Checks& checks, const std::string& hint = "") {
  try {
    return checks();
  } catch (const UsageError&) {
    throw;
  } catch (const std::exception& error) {
    throw_as_usage(error, hint);
  }
}

//! UsageError for what is not an exported model.
Pt2Archive open_archive(const std::string& model);

//! An integer tensor in the integer dtype that is wanted, if all values fit; else UsageError names both. Any
//! other dtype must be the one that is wanted.
at::Tensor with_dtype(const at::Tensor& tensor, at::ScalarType wanted, const std::string& name);

//! UsageError where an input holds numbers that an embedding which reads it has no row for. `leaves` are
//! those of `graph.inputs`.
void check_tokens(const Graph& graph, const std::vector<c10::IValue>& leaves);

//! The sizes of the outputs for inputs of these sizes; without those that cannot be known before running.
std::vector<std::optional<ValueMeta>> output_sizes(const Graph& graph,
                                                   const std::vector<c10::IValue>& leaves);

//! The tensors of a file that training needs: the inputs, in the model's dtypes, and `target`, as the loss
//! takes it. UsageError names everything that the file lacks.
std::map<std::string, at::Tensor> read_training_data(const train::ArchiveModel& model, train::LossKind loss,
                                                     const std::string& path);

//! UsageError unless the target fits the output that the loss is of: the shape of a microbatch of so many
//! rows, the dtype, and the classes of all examples.
void check_target(const at::Tensor& target, std::int64_t rows, const ValueMeta& output, train::LossKind loss);

}  // namespace penstock::tool
