// Hooks into the autograd engine.
#include "parallel/replicate/leaf_hooks.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <utility>

namespace penstock::parallel {
namespace {

using torch::autograd::variable_list;

class AddedHook final : public torch::autograd::FunctionPostHook {
 public:
  explicit AddedHook(std::function<void()> added) : added_(std::move(added)) {}
  variable_list operator()(const variable_list& outputs, const variable_list& /*inputs*/) override {
    added_();
    return outputs;
  }

 private:
  std::function<void()> added_;
};

// The engine destroys its callbacks with their backward: if that ends without calling them, it failed.
struct EndCallback {
  std::function<void(bool)> end;
  ~EndCallback() {
    if (end) end(false);
  }
};

}  // namespace

void LeafHooks::add(const at::Tensor& leaf, std::function<void()> added) {
  c10::intrusive_ptr<torch::autograd::Node> accumulator = torch::autograd::impl::grad_accumulator(leaf);
  const std::uintptr_t key = accumulator->add_post_hook(std::make_unique<AddedHook>(std::move(added)));
  hooks_.push_back({std::move(accumulator), key});
}

void LeafHooks::clear() noexcept {
  for (const Hook& hook : hooks_) hook.accumulator->del_post_hook(hook.key);
  hooks_.clear();
}

void EndOfBackward::watch(const std::weak_ptr<void>& owner, std::function<void(bool success)> end) {
  if (registered_) return;
  registered_ = true;
  const auto callback = std::make_shared<EndCallback>();
  callback->end = [owner, end = std::move(end)](bool success) {
    if (const auto alive = owner.lock()) end(success);
  };
  torch::autograd::Engine::get_default_engine().queue_callback([this, owner, callback] {
    const std::function<void(bool)> finished = std::exchange(callback->end, nullptr);
    // If a node is being evaluated, it belongs to an outer backward around the one that ended.
    if (!torch::autograd::get_current_node()) return finished(true);
    if (const auto alive = owner.lock()) reset();
  });
}

}  // namespace penstock::parallel
