// Captures C++ models without Python. The forward pass runs once while a recorder above autograd in
// libtorch's dispatcher records every operator call.
#pragma once

#include <penstock/graph/ir.h>
#include <penstock/value/microbatch.h>

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace penstock::graph {

//! A forward pass: any function of the arguments.
using ForwardFunction = std::function<c10::IValue(const value::Args& args, const value::Kwargs& kwargs)>;

//! The parameters and buffers of a model, by fully qualified name. A tensor may have several names.
struct ModelTensors {
  std::vector<value::NamedTensor> parameters;
  std::vector<value::NamedTensor> buffers;
};

//! A recorded graph and its tensors.
struct Captured {
  Graph graph;
  std::vector<at::Tensor> tensors;  //!< one per slot; they share memory with the model
};

//! Runs `forward` once on copies of the arguments and returns the recorded graph. Restores the buffers and
//! the random state. Sizes become constants of the graph. Throws UsageError, naming operator and module, for
//! anything a graph cannot represent: numbers read from tensors, memory sharing that the recorder cannot
//! see, custom autograd functions.
Captured capture(const ForwardFunction& forward, const ModelTensors& model, const value::Args& args,
                 const value::Kwargs& kwargs = {});

//! Like `capture`, but the graph accepts any number of rows (dim 0 of every tensor argument with as many rows
//! as the first). Runs the forward pass with three different numbers of rows; every size or integer that
//! depends on the rows becomes an expression in the symbol `batch`. Throws UsageError, naming operator and
//! module, if the dependence is not linear (a multiple of `batch` plus a constant) or if different operators
//! run.
Captured capture_dynamic(const ForwardFunction& forward, const ModelTensors& model, const value::Args& args,
                         const value::Kwargs& kwargs = {});

//! While it is alive, this thread creates tensors on the meta device, without memory. A model of any size can
//! be built, captured (nothing is computed) and split; each rank then materializes only its own stages.
class MetaDeviceScope {
 public:
  MetaDeviceScope();
  ~MetaDeviceScope();
  MetaDeviceScope(const MetaDeviceScope&) = delete;
  MetaDeviceScope& operator=(const MetaDeviceScope&) = delete;
};

//! Marks a stage boundary. Does nothing outside a capture.
void pipe_split();

//! While it is alive, recorded operators belong to the module `name`, relative to the enclosing scopes.
//! Without any scope, operators belong to the module whose parameters they read.
class ModuleScope {
 public:
  explicit ModuleScope(const std::string& name);
  ~ModuleScope();
  ModuleScope(const ModuleScope&) = delete;
  ModuleScope& operator=(const ModuleScope&) = delete;
};

}  // namespace penstock::graph
