// Saved-tensor hooks in C++. libtorch asks its autograd engine for the hooks of each saved tensor; Python's
// engine returns Python hooks. This engine returns the hooks of the thread's scope, or of the scope in which
// the backward pass of this thread started. It wraps the default engine when the first scope is created.
#include "tensor/dispatch/autograd.h"
#include "tensor/dispatch/dtensor_impl.h"
#include "value/carried_setting.h"

#include <penstock/base/error.h>
#include <penstock/parallel/input_reshard.h>

#include <torch/csrc/autograd/engine.h>

#include <mutex>

namespace penstock::parallel {

namespace {

struct Resharded {
  tensor::DeviceMesh mesh;
  std::int64_t dim;
};

constexpr std::string_view kInputReshard = "penstock: InputReshard";
constexpr value::CarriedSetting<Resharded> current_reshard(&kInputReshard);

class Resharding : public torch::autograd::SavedVariableHooks {
 public:
  explicit Resharding(const Resharded& scope) : mesh_(scope.mesh), dim_(scope.dim) {}

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

// Backward passes run on the engine that it replaces: libtorch starts the threads of devices for one engine
// only.
class HookingEngine : public torch::autograd::Engine {
 public:
  explicit HookingEngine(Engine& replaced) : replaced_(replaced) {}

  std::unique_ptr<torch::autograd::SavedVariableHooks> get_default_saved_variable_hooks() override {
    const Resharded* const scope = current_reshard.find();
    if (scope == nullptr) return replaced_.get_default_saved_variable_hooks();
    return std::make_unique<Resharding>(*scope);
  }
  torch::autograd::variable_list execute(const torch::autograd::edge_list& roots,
                                         const torch::autograd::variable_list& inputs, bool keep_graph,
                                         bool create_graph, bool accumulate_grad,
                                         const torch::autograd::edge_list& outputs) override {
    return replaced_.execute(roots, inputs, keep_graph, create_graph, accumulate_grad, outputs);
  }
  std::unique_ptr<torch::autograd::AnomalyMetadata> make_anomaly_metadata() override {
    return replaced_.make_anomaly_metadata();
  }

  //! Replaces the default engine; it is never destroyed, like libtorch's.
  static void install() {
    static std::once_flag once;
    std::call_once(once, [] {
      installed = new HookingEngine(get_default_engine());  // NOLINT: see above
      torch::autograd::set_default_engine_stub([]() -> Engine& { return *installed; });
    });
  }

 private:
  static inline HookingEngine* installed = nullptr;
  Engine& replaced_;
};

}  // namespace

InputReshard::InputReshard(const tensor::DeviceMesh& mesh, std::int64_t dim) {
  if (mesh.ndim() != 1) {
    throw UsageError("InputReshard needs a mesh with one axis, not " + to_string(mesh), {},
                     "pass one axis: mesh[\"tp\"]");
  }
  HookingEngine::install();
  scope_ = std::make_shared<value::CarriedSetting<Resharded>::Scope>(current_reshard, Resharded{mesh, dim});
}

InputReshard::~InputReshard() = default;

}  // namespace penstock::parallel
