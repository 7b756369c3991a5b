// A number that tells shapes apart: equal for microbatches whose arguments have the same structure, dtypes,
// shapes and plain values. Stages that saw a signature before know the shapes that follow from it.
#pragma once

#include <ATen/core/ivalue.h>

#include <cstdint>
#include <string_view>

namespace penstock {

class Signature {
 public:
  Signature& add(std::uint64_t value);
  Signature& add(std::string_view text);
  Signature& add(const c10::IValue& tree);
  std::uint64_t value() const { return state_; }

 private:
  std::uint64_t state_ = 0xcbf29ce484222325ULL;  // FNV-1a over 64-bit words, with a final mix in each
};

}  // namespace penstock
