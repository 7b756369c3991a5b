// The world of a pipeline group: the ranks of a c10d process group of Python, over a transport of Penstock.
#pragma once

#include <penstock/comm/world.h>

#include <pybind11/pybind11.h>

#include <memory>
#include <optional>
#include <string>

namespace penstock::python {

namespace py = pybind11;

//! A world that Python owns. `close` leaves it; afterwards only `closed` may be called.
class PythonWorld {
 public:
  PythonWorld(comm::World world) : world_(std::move(world)) {}
  ~PythonWorld() { close(); }

  comm::World& get();
  void close();
  bool closed() const { return !world_; }

 private:
  std::optional<comm::World> world_;
};

void bind_world(py::module_& module);

}  // namespace penstock::python
