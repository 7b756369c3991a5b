// The hooked modules of the process.
#include <penstock/base/error.h>
#include <penstock/value/call.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>

namespace penstock {
namespace {

// Several hooks as one. It never changes: calls may be under way.
class Chain final : public CallHooks {
 public:
  explicit Chain(std::vector<std::shared_ptr<CallHooks>> parts) : parts_(std::move(parts)) {}
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
  at::Tensor result(const at::Tensor& tensor) override {
    at::Tensor value = tensor;
    for (auto part = parts_.rbegin(); part != parts_.rend(); ++part) value = (*part)->result(value);
    return value;
  }

 private:
  std::vector<std::shared_ptr<CallHooks>> parts_;
};

struct Hooked {
  std::vector<std::shared_ptr<CallHooks>> parts;
  std::shared_ptr<CallHooks> all;  // the only part, or a chain of them

  void link() { all = parts.size() == 1 ? parts.front() : std::make_shared<Chain>(parts); }
};

struct Hooks {
  std::shared_mutex mutex;
  std::unordered_map<const void*, Hooked> hooks;
  std::atomic<std::size_t> count{0};  // so that programs without hooks take no lock
};

Hooks& all_hooks() {
  static Hooks all;
  return all;
}

}  // namespace

HookedModule::HookedModule(const void* module, std::shared_ptr<CallHooks> hooks)
    : module_(module), hooks_(std::move(hooks)) {
  Hooks& all = all_hooks();
  const std::unique_lock lock(all.mutex);
  Hooked& hooked = all.hooks[module];
  const auto alone = [](const std::shared_ptr<CallHooks>& part) { return part->alone(); };
  if (hooks_->alone() && std::any_of(hooked.parts.begin(), hooked.parts.end(), alone))
    throw UsageError("the module's calls are hooked already", {}, "is it a unit of two sharded models?");
  hooked.parts.push_back(hooks_);
  hooked.link();
  all.count.store(all.hooks.size(), std::memory_order_release);
}

HookedModule::~HookedModule() {
  if (module_ == nullptr) return;
  Hooks& all = all_hooks();
  const std::unique_lock lock(all.mutex);
  Hooked& hooked = all.hooks.at(module_);
  std::erase(hooked.parts, hooks_);
  if (hooked.parts.empty()) {
    all.hooks.erase(module_);
  } else {
    hooked.link();
  }
  all.count.store(all.hooks.size(), std::memory_order_release);
}

std::shared_ptr<CallHooks> hooks_of(const void* module) {
  Hooks& all = all_hooks();
  if (all.count.load(std::memory_order_acquire) == 0) return nullptr;
  const std::shared_lock lock(all.mutex);
  const auto found = all.hooks.find(module);
  return found == all.hooks.end() ? nullptr : found->second.all;
}

}  // namespace penstock
