// The world of a pipeline group.
#include "world.h"

#include "raise.h"

#include <penstock/base/error.h>

#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/utils/pybind.h>

#include <chrono>
#include <utility>

namespace penstock::python {
namespace {

std::shared_ptr<PythonWorld> join(const py::object& store, int rank, int size, int local_rank,
                                  const std::string& backend, const std::string& device,
                                  std::optional<double> timeout) {
  // Torch registers stores with a holder that its headers do not declare.
  c10::intrusive_ptr<c10d::Store> shared;
  if (!store.is_none())
    shared = c10::intrusive_ptr<c10d::Store>::unsafe_reclaim_from_nonowning(store.cast<c10d::Store*>());
  return without_gil([&] {
    comm::InitOptions options;
    options.backend = comm::parse_backend(backend);
    options.device = c10::Device(device);
    if (timeout) options.timeout = std::chrono::milliseconds(static_cast<std::int64_t>(*timeout * 1000));
    return std::make_shared<PythonWorld>(comm::join_world(
        shared, {.rank = Rank(rank), .world_size = size, .local_rank = local_rank}, options));
  });
}

}  // namespace

comm::World& PythonWorld::get() {
  if (!world_) throw UsageError("the world of this pipeline was closed");
  return *world_;
}

void PythonWorld::close() {
  if (!world_) return;
  const py::gil_scoped_release release;  // other ranks may have to answer first
  world_.reset();
}

void bind_world(py::module_& module) {
  py::class_<PythonWorld, std::shared_ptr<PythonWorld>>(module, "World")
      .def_static("join", &join, py::arg("store"), py::arg("rank"), py::arg("size"), py::arg("local_rank"),
                  py::arg("backend"), py::arg("device"), py::arg("timeout"))
      .def_property_readonly("rank", [](PythonWorld& world) { return world.get().rank().value; })
      .def_property_readonly("size", [](PythonWorld& world) { return world.get().size(); })
      .def_property_readonly("backend", [](PythonWorld& world) { return world.get().group().backend(); })
      .def_property_readonly("closed", &PythonWorld::closed)
      .def("fail", [](PythonWorld& world,
                      const std::string& cause) { without_gil([&] { world.get().fail(cause); }); })
      .def("check", [](PythonWorld& world) { without_gil([&] { world.get().check(); }); })
      .def("rebuild", [](PythonWorld& world) { without_gil([&] { world.get().rebuild(); }); })
      .def("close", &PythonWorld::close);
}

}  // namespace penstock::python
