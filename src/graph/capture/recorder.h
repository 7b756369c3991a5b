// Records the operator calls of a forward pass as nodes. At most one recorder is active per thread.
#pragma once

#include <penstock/graph/capture.h>
#include <penstock/graph/ir.h>

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <unordered_map>

namespace penstock::graph {

class Recorder {
 public:
  explicit Recorder(const ModelTensors& model);

  ValueId add_input(const std::string& name, const c10::IValue& leaf);
  void mark_split();
  //! Runs the operator on the stack and records it.
  void call(const c10::OperatorHandle& op, torch::jit::Stack& stack);
  //! Returns the graph output for a leaf of the result.
  Arg output(const c10::IValue& leaf);
  Captured finish();

  //! If true, operators run on meta tensors and compute nothing.
  bool without_memory = false;
  //! Enters a module. Every call of the same path counts as a new call of the module.
  void enter(const std::string& module);
  void leave();

 private:
  //! A recorded tensor. The weak pointer prevents reuse of its address but does not keep its memory alive.
  struct Known {
    c10::weak_intrusive_ptr<c10::TensorImpl> alive;
    ValueId value;
    std::uint32_t version = 0;
    bool requires_grad = false;
  };
  //! The position of a value within its storage.
  struct Position {
    ValueId value;
    std::vector<std::int64_t> sizes, strides;
    std::int64_t offset = 0;
    bool requires_grad = false;
  };
  struct KnownStorage {
    c10::weak_intrusive_ptr<c10::StorageImpl> alive;
    std::int32_t number;
    bool filled = true;  //!< false: allocated, but not written yet
    std::vector<Position> positions;
  };

  ValueId define(const std::string& name, const at::Tensor& tensor, bool filled = true);
  ValueId read(const at::Tensor& tensor, bool written);
  ValueId lift(const at::Tensor& tensor);
  ValueId copy_constant(const at::Tensor& tensor, ValueId constant);
  KnownStorage* storage_of(const at::Tensor& tensor);
  ValueId alias_same_position(const at::Tensor& tensor, const KnownStorage& storage);
  Arg argument(const c10::IValue& value, bool written);
  Result result(const std::string& name, const c10::IValue& value, bool filled);
  void check_autograd(const Known& known, const at::Tensor& tensor) const;
  void set_module(Node& node) const;
  std::string scope() const;
  NodeMode mode(c10::DispatchKey autograd);
  std::string fresh_name(const std::string& base);
  [[noreturn]] void refuse(const std::string& what, const std::string& hint) const;

  //! A module call that is being recorded.
  struct Scope {
    std::string path;
    int call = 0;
  };

  Captured captured_;
  std::vector<Scope> scopes_;
  std::unordered_map<std::string, int> calls_;  //!< number of calls by module path
  std::unordered_map<const c10::TensorImpl*, Known> known_;
  std::unordered_map<const c10::StorageImpl*, KnownStorage> storages_;
  std::unordered_map<std::string, int> names_;
  std::unordered_map<std::int32_t, std::string> owners_;  //!< module that owns the slot of a value
  std::string current_;                                   //!< the operator being recorded, for errors
  bool base_grad_;
  Autocast base_cpu_, base_accelerator_, last_cpu_, last_accelerator_;
  int region_ = 0;
  std::int32_t next_storage_ = 0;
  int constants_ = 0;
};

}  // namespace penstock::graph
