// Sets the grad and autocast modes of a node on this thread; the destructor restores the caller's.
#pragma once

#include <penstock/graph/ir.h>

#include <vector>

namespace penstock::graph {

class ModeGuard {
 public:
  explicit ModeGuard(const NodeMode& mode);
  ~ModeGuard();
  ModeGuard(const ModeGuard&) = delete;
  ModeGuard& operator=(const ModeGuard&) = delete;

 private:
  struct Saved {
    c10::DeviceType device;
    at::ScalarType dtype;
    bool enabled;
    bool cache;
  };

  bool grad_;
  std::vector<Saved> saved_;
};

}  // namespace penstock::graph
