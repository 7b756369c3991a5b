// Capture of C++ models without Python: the forward runs once while a recorder sits above autograd in
// libtorch's dispatcher and writes down every operator it calls.
#pragma once

#include <penstock/graph/ir.h>
#include <penstock/value/microbatch.h>

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace penstock {

//! A forward pass: any function of the arguments.
using ForwardFunction = std::function<c10::IValue(const Args& args, const Kwargs& kwargs)>;

//! The tensors that a model owns, by fully qualified name; a tensor may stand under several names.
struct ModelTensors {
  std::vector<std::pair<std::string, at::Tensor>> parameters;
  std::vector<std::pair<std::string, at::Tensor>> buffers;
};

struct Captured {
  Graph graph;
  std::vector<at::Tensor> tensors;  //!< of the slots: the model's own, not copies
};

//! Runs `forward` once on copies of the arguments and returns what it did. Buffers and the random state are
//! as before afterwards. Sizes are baked in. UsageError, naming operator and module, for what a graph cannot
//! hold: numbers read from tensors, memory that is shared behind the recorder's back, custom autograd
//! functions.
Captured capture(const ForwardFunction& forward, const ModelTensors& model, const Args& args,
                 const Kwargs& kwargs = {});

//! The same for any number of rows (dim 0 of the tensor arguments that have as many as the first): the
//! forward runs with three of them, and every size and number that grows with the rows becomes an expression
//! of the symbol `batch`. UsageError, naming operator and module, where one does so otherwise than as a
//! multiple of it plus a constant, or other operators run.
Captured capture_dynamic(const ForwardFunction& forward, const ModelTensors& model, const Args& args,
                         const Kwargs& kwargs = {});

//! While it lives, tensors that this thread makes have sizes but no memory: a model of any size can be built,
//! captured (its parameters being on the meta device, nothing is computed) and split; each rank then fills
//! only its stages.
class NoMemory {
 public:
  NoMemory();
  ~NoMemory();
  NoMemory(const NoMemory&) = delete;
  NoMemory& operator=(const NoMemory&) = delete;
};

//! Marks the place between two stages. Outside of a capture it does nothing.
void pipe_split();

//! While it lives, recorded operators belong to the module `name` (below the scopes around it). Where a
//! forward has none, operators belong to the module whose parameters they read.
class ModuleScope {
 public:
  explicit ModuleScope(const std::string& name);
  ~ModuleScope();
  ModuleScope(const ModuleScope&) = delete;
  ModuleScope& operator=(const ModuleScope&) = delete;
};

}  // namespace penstock
