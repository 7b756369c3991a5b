// The registry of hooked modules of this process.
#include "runtime/stage/hooked_module.h"

#include <penstock/base/error.h>
#include <penstock/runtime/module_call.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>

namespace penstock::runtime {
namespace {

// Combines several hooks. Immutable, because calls may be running.
class Chain final : public detail::CallHooks {
 public:
  explicit Chain(std::vector<std::shared_ptr<detail::CallHooks>> parts) : parts_(std::move(parts)) {}
  void before() override {
    for (const auto& part : parts_) part->before();
  }
  void after(const std::vector<at::Tensor>& outputs) override {
    for (auto part = parts_.rbegin(); part != parts_.rend(); ++part) (*part)->after(outputs);
  }
  at::Tensor argument(const at::Tensor& tensor, std::size_t index) override {
    at::Tensor value = tensor;
    for (const auto& part : parts_) value = part->argument(value, index);
    return value;
  }
  at::Tensor result(const at::Tensor& tensor, std::size_t index) override {
    at::Tensor value = tensor;
    for (auto part = parts_.rbegin(); part != parts_.rend(); ++part) value = (*part)->result(value, index);
    return value;
  }
  void expect_arguments(std::size_t count) override {
    for (const auto& part : parts_) part->expect_arguments(count);
  }
  void expect_results(std::size_t count) override {
    for (const auto& part : parts_) part->expect_results(count);
  }
  bool recomputes() const override {
    return std::any_of(parts_.begin(), parts_.end(), [](const auto& part) { return part->recomputes(); });
  }

 private:
  std::vector<std::shared_ptr<detail::CallHooks>> parts_;
};

struct Hooked {
  std::vector<std::shared_ptr<detail::CallHooks>> parts;
  std::shared_ptr<detail::CallHooks> all;  // the only hooks, or a chain
  // For permanent hooks: the module, because another module may reuse its address.
  std::optional<std::weak_ptr<const void>> owner;

  bool gone() const { return owner && owner->expired(); }

  void link() { all = parts.size() == 1 ? parts.front() : std::make_shared<Chain>(parts); }
};

struct Hooks {
  std::shared_mutex mutex;
  std::unordered_map<const void*, Hooked> hooks;
  std::atomic<std::size_t> count{0};  // lets programs without hooks skip the lock
};

Hooks& all_hooks() {
  static Hooks all;
  return all;
}

void add(const void* module, std::shared_ptr<detail::CallHooks> hooks,
         std::optional<std::weak_ptr<const void>> owner) {
  Hooks& all = all_hooks();
  const std::unique_lock lock(all.mutex);
  std::erase_if(all.hooks, [](const auto& item) { return item.second.gone(); });
  Hooked& hooked = all.hooks[module];
  const auto exclusive = [](const std::shared_ptr<detail::CallHooks>& part) { return part->exclusive(); };
  if (hooks->exclusive() && std::any_of(hooked.parts.begin(), hooked.parts.end(), exclusive))
    throw UsageError("the module already has exclusive call hooks", {},
                     "a module can be a unit of only one sharded model");
  hooked.parts.push_back(std::move(hooks));
  if (owner) hooked.owner = std::move(owner);
  hooked.link();
  all.count.store(all.hooks.size(), std::memory_order_release);
}

}  // namespace

HookedModule::HookedModule(const void* module, std::shared_ptr<detail::CallHooks> hooks)
    : module_(module), hooks_(std::move(hooks)) {
  add(module, hooks_, std::nullopt);
}

void hook_module(const void* module, std::weak_ptr<const void> owner,
                 std::shared_ptr<detail::CallHooks> hooks) {
  add(module, std::move(hooks), std::move(owner));
}

HookedModule::~HookedModule() {
  if (module_ == nullptr) return;
  Hooks& all = all_hooks();
  const std::unique_lock lock(all.mutex);
  const auto found = all.hooks.find(module_);
  if (found == all.hooks.end()) return;  // removed together with the module
  Hooked& hooked = found->second;
  std::erase(hooked.parts, hooks_);
  if (hooked.parts.empty()) {
    all.hooks.erase(module_);
  } else {
    hooked.link();
  }
  all.count.store(all.hooks.size(), std::memory_order_release);
}

std::shared_ptr<detail::CallHooks> detail::hooks_of(const void* module) {
  Hooks& all = all_hooks();
  if (all.count.load(std::memory_order_acquire) == 0) return nullptr;
  const std::shared_lock lock(all.mutex);
  const auto found = all.hooks.find(module);
  return found == all.hooks.end() || found->second.gone() ? nullptr : found->second.all;
}

}  // namespace penstock::runtime
