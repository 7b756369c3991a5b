// The names of Gloo that libtorch's ProcessGroupGloo.hpp mentions, for builds without Gloo's headers: the
// torch package contains Gloo but not its headers. Penstock passes these types by pointer only; their
// definitions are in libtorch.
#pragma once

#include <chrono>

namespace gloo {

//! An inline function of libtorch's header calls this function, but no code of Penstock calls that one.
class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
};

}  // namespace gloo
