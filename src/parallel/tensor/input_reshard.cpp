// Saved-tensor hooks in C++. libtorch asks its autograd engine for the hooks of each saved tensor; Python's
// engine returns Python hooks. This engine returns the hooks of the thread's scope. It replaces the default
// engine when the first scope is created.
#include "tensor/dispatch/autograd.h"
#include "tensor/dispatch/dtensor_impl.h"

#include <penstock/base/error.h>
#include <penstock/parallel/input_reshard.h>

#include <torch/csrc/autograd/engine.h>

#include <mutex>

namespace penstock::parallel {

struct InputReshard::Scope {
  tensor::DeviceMesh mesh;
  std::int64_t dim;
  Scope* outer;
};

namespace {

thread_local InputReshard::Scope* current = nullptr;

class Resharding : public torch::autograd::SavedVariableHooks {
 public:
  explicit Resharding(const InputReshard::Scope& scope) : mesh_(scope.mesh), dim_(scope.dim) {}

  void call_pack_hook(const at::Tensor& tensor) override {
    const c10::AutoGradMode off(false);
    kept_ = tensor.is_leaf() ? tensor : tensor.detach();
    const tensor::DTensorImpl* impl = tensor::impl_of(tensor);
    const bool fits = impl && !impl->pinned && tensor.dim() > dim_ && impl->placements().size() == 1 &&
                      impl->placements()[0].is_replicate() &&
                      tensor::Access::mesh(impl->mesh_ptr()) == mesh_ &&
                      !(tensor.is_leaf() && tensor.requires_grad());
    if (!fits) return;
    kept_ = tensor::redistributed(kept_, {tensor::Shard(dim_)}, false);
    sharded_ = true;
  }

  at::Tensor call_unpack_hook() override {
    const c10::AutoGradMode off(false);
    return sharded_ ? tensor::redistributed(kept_, {tensor::Replicate()}, false) : kept_;
  }

 private:
  tensor::DeviceMesh mesh_;
  std::int64_t dim_;
  at::Tensor kept_;
  bool sharded_ = false;
};

class HookingEngine : public torch::autograd::Engine {
 public:
  std::unique_ptr<torch::autograd::SavedVariableHooks> get_default_saved_variable_hooks() override {
    return current ? std::make_unique<Resharding>(*current) : nullptr;
  }

  static Engine& get() {
    static auto* const engine = new HookingEngine;  // NOLINT: never destroyed, like libtorch's engine
    return *engine;
  }
};

}  // namespace

InputReshard::InputReshard(const tensor::DeviceMesh& mesh, std::int64_t dim) {
  if (mesh.ndim() != 1) {
    throw UsageError("InputReshard needs a mesh with one axis, not " + to_string(mesh), {},
                     "pass one axis: mesh[\"tp\"]");
  }
  static std::once_flag once;
  std::call_once(once, [] { torch::autograd::set_default_engine_stub(&HookingEngine::get); });
  scope_ = std::make_unique<Scope>(Scope{mesh, dim, current});
  current = scope_.get();
}

InputReshard::~InputReshard() {
  current = scope_->outer;
}

}  // namespace penstock::parallel
