// The hooked modules of the process.
#include <penstock/base/error.h>
#include <penstock/value/call.h>

#include <atomic>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>

namespace penstock {
namespace {

struct Registry {
  std::shared_mutex mutex;
  std::unordered_map<const void*, std::shared_ptr<CallHooks>> hooks;
  std::atomic<std::size_t> count{0};  // so that programs without hooks take no lock
};

Registry& registry() {
  static Registry all;
  return all;
}

}  // namespace

HookedModule::HookedModule(const void* module, std::shared_ptr<CallHooks> hooks) : module_(module) {
  Registry& all = registry();
  const std::unique_lock lock(all.mutex);
  if (!all.hooks.emplace(module, std::move(hooks)).second) {
    module_ = nullptr;
    throw UsageError("the module's calls are hooked already", {}, "is it a unit of two sharded models?");
  }
  all.count.store(all.hooks.size(), std::memory_order_release);
}

HookedModule::~HookedModule() {
  if (module_ == nullptr) return;
  Registry& all = registry();
  const std::unique_lock lock(all.mutex);
  all.hooks.erase(module_);
  all.count.store(all.hooks.size(), std::memory_order_release);
}

std::shared_ptr<CallHooks> hooks_of(const void* module) {
  Registry& all = registry();
  if (all.count.load(std::memory_order_acquire) == 0) return nullptr;
  const std::shared_lock lock(all.mutex);
  const auto found = all.hooks.find(module);
  return found == all.hooks.end() ? nullptr : found->second;
}

}  // namespace penstock
