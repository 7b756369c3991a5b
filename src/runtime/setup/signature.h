// A hash over the metadata of a microbatch: equal if the arguments have the same structure, dtypes, shapes
// and non-tensor values. Stages cache the message metadata of each signature.
#pragma once

#include "base/fnv1a.h"

#include <ATen/core/ivalue.h>

#include <cstdint>
#include <string_view>

namespace penstock::runtime {

class Signature {
 public:
  Signature& add(std::uint64_t value);
  Signature& add(std::string_view text);
  Signature& add(const c10::IValue& tree);
  std::uint64_t value() const { return state_; }

 private:
  std::uint64_t state_ = kFnv1aBasis;  // FNV-1a over 64-bit words, each with a final mix
};

}  // namespace penstock::runtime
