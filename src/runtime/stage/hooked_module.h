// Installs hooks around the calls of a module.
#pragma once

#include <penstock/runtime/module_call.h>

#include <memory>
#include <utility>

namespace penstock::runtime {

//! Installs hooks for the lifetime of the module. `owner` expires with the module.
void hook_module(const void* module, std::weak_ptr<const void> owner,
                 std::shared_ptr<detail::CallHooks> hooks);

//! Installs hooks on a module for the lifetime of this object. A module may have several hooks: the first one
//! installed sees a call first and its result last. Throws UsageError if two of them are exclusive.
class HookedModule {
 public:
  HookedModule(const void* module, std::shared_ptr<detail::CallHooks> hooks);
  ~HookedModule();
  HookedModule(HookedModule&& other) noexcept
      : module_(std::exchange(other.module_, nullptr)), hooks_(std::move(other.hooks_)) {}
  HookedModule& operator=(HookedModule&&) = delete;

 private:
  const void* module_;
  std::shared_ptr<detail::CallHooks> hooks_;
};

}  // namespace penstock::runtime
