// Checks an exported model and a file of examples before anything runs. Shared by all commands that take
// both.
#pragma once

#include <penstock/base/error.h>
#include <penstock/graph/pt2.h>
#include <penstock/train/model.h>

#include <ATen/core/Tensor.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

namespace penstock::tool {

//! Rethrows the error as a UsageError (exit code 2), on one line, with this hint or else its own.
[[noreturn]] void throw_as_usage(const std::exception& error, const std::string& hint = "");

//! Runs the checks and converts every exception to a UsageError: at this point, bad files, shapes and
//! checkpoints are user errors.
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

//! Opens an exported model. Throws UsageError if the file is not a valid archive.
graph::Pt2Archive open_archive(const std::string& model);
//! The same for an exported model to train.
train::ArchiveModel open_model(const train::ArchiveOptions& options);

//! Whether the dtype is an integer type other than bool.
bool is_integer(at::ScalarType dtype);

//! Converts an integer tensor to the wanted integer dtype if all values fit. Any other dtype must match
//! exactly. Throws a UsageError that names both dtypes.
at::Tensor with_dtype(const at::Tensor& tensor, at::ScalarType wanted, const std::string& name);

//! Throws UsageError if an input contains indices outside the embedding that reads it. `leaves` correspond to
//! `graph.inputs`.
void check_tokens(const graph::Graph& graph, const std::vector<c10::IValue>& leaves);

//! Throws UsageError if the examples of the file `path` do not have the shape that the model was exported
//! for. `leaves` correspond to `graph.inputs`; dim 0 counts the examples and is not checked.
void check_example_shapes(const graph::Graph& graph, const std::vector<c10::IValue>& leaves,
                          const std::string& path);

//! Throws UsageError if a batch norm in training mode gets one value per channel: its output would not depend
//! on its input. `sized` has the sizes for a microbatch of one row.
void check_batch_norms(const graph::Graph& sized);

//! The graph with the sizes of all values for these inputs; nullopt if they cannot be known before the run.
std::optional<graph::Graph> sized_graph(const graph::Graph& graph, const std::vector<c10::IValue>& leaves);

//! Infers the output metadata for these inputs. Entries are nullopt if they cannot be known before the run.
std::vector<std::optional<graph::ValueMeta>> output_sizes(const graph::Graph& graph,
                                                          const std::vector<c10::IValue>& leaves);

//! The dtype that the loss needs for a target that is stored in this dtype.
at::ScalarType target_dtype(const train::ArchiveModel& model, train::LossKind loss, at::ScalarType stored);

//! Throws UsageError unless the target matches the output used for the loss: the shape of a microbatch with
//! `rows` rows, the dtype, and the classes of all examples, in `class_dim` of the output (default: the last).
void check_target(const at::Tensor& target, std::int64_t rows, const graph::ValueMeta& output,
                  train::LossKind loss, std::optional<std::int64_t> class_dim = std::nullopt);

//! Throws UsageError unless targets that the loss takes as probabilities are: numbers from 0 to 1, which add
//! up to 1 over the classes for cross_entropy. Other targets pass.
void check_probabilities(const at::Tensor& target, train::LossKind loss,
                         std::optional<std::int64_t> class_dim = std::nullopt);

}  // namespace penstock::tool
