// A setting of a thread that also holds in the backward passes that the thread starts. Backward passes of a
// device run on a thread of autograd, where a thread_local of the caller is not visible. libtorch captures
// its debug info when a backward pass starts, and restores it there.
#pragma once

#include <c10/util/ThreadLocalDebugInfo.h>

#include <memory>
#include <string_view>
#include <utility>

namespace penstock::value {

template <class Value>
class CarriedSetting {
 public:
  //! The address of `name` identifies the setting.
  explicit constexpr CarriedSetting(const std::string_view* name) : kind_(name) {}

  //! The value of the innermost scope; null if there is none.
  const Value* find() const {
    const c10::DebugInfoBase* const info = c10::ThreadLocalDebugInfo::get(kind_);
    return info != nullptr ? &static_cast<const Info*>(info)->value : nullptr;
  }

  //! Sets the value during its lifetime. Scopes must end in reverse order, on their thread.
  class Scope {
   public:
    Scope(const CarriedSetting& setting, Value value)
        : guard_(setting.kind_, std::make_shared<Info>(std::move(value))) {}

   private:
    c10::DebugInfoGuard guard_;
  };

 private:
  struct Info : c10::DebugInfoBase {
    explicit Info(Value given) : value(std::move(given)) {}
    Value value;
  };

  c10::DebugInfoKind kind_;
};

}  // namespace penstock::value
