// Puts a node's grad and autocast modes in force on this thread, and the caller's back.
#pragma once

#include <penstock/graph/ir.h>

#include <vector>

namespace penstock {

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

}  // namespace penstock
