// The base class of a class in ProcessGroupGloo.hpp that Penstock does not use. It declares the functions
// that are overridden there; the compiler needs no more. See context.h.
#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace gloo::rendezvous {

//! No object of it is created or called here, so the order of its functions does not matter.
class Store {
 public:
  virtual ~Store();
  virtual void set(const std::string& key, const std::vector<char>& value) = 0;
  virtual std::vector<char> get(const std::string& key) = 0;
  virtual void wait(const std::vector<std::string>& keys) = 0;
  virtual void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) = 0;
};

}  // namespace gloo::rendezvous
