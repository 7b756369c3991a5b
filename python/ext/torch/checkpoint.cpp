// Checkpoints for Python: reading, verifying, and writing from one process.
#include "checkpoint.h"

#include "raise.h"
#include "values.h"
#include "world.h"

#include <penstock/base/diagnostic.h>
#include <penstock/base/error.h>
#include <penstock/checkpoint/checkpoint.h>
#include <penstock/checkpoint/convert.h>
#include <penstock/checkpoint/writer.h>

#include <pybind11/stl.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <map>
#include <string>
#include <tuple>
#include <vector>

namespace penstock::python {
namespace {

//! Name, kind, state, tensor.
using Entry = std::tuple<std::string, std::string, std::string, py::object>;

checkpoint::PieceKind piece_kind_named(const std::string& name) {
  for (const auto kind : {checkpoint::PieceKind::Parameter, checkpoint::PieceKind::Buffer,
                          checkpoint::PieceKind::Optimizer, checkpoint::PieceKind::Extra}) {
    if (to_string(kind) == name) return kind;
  }
  throw UsageError("there is no kind of tensor named " + name);
}

std::string save(const std::string& directory, std::int64_t step, const std::vector<Entry>& entries,
                 const checkpoint::Notes& notes, std::optional<int> keep) {
  std::vector<checkpoint::Piece> pieces;
  for (const auto& [name, kind, state, tensor] : entries) {
    checkpoint::Piece piece =
        checkpoint::full_piece(name, THPVariable_Unpack(tensor.ptr()).detach(), piece_kind_named(kind));
    piece.state = state;
    pieces.push_back(std::move(piece));
  }
  return without_gil([&] {
    const comm::World alone = comm::join_world(nullptr, {});
    checkpoint::CheckpointWriter writer(directory, alone.group(), {.keep = keep, .asynchronous = false});
    writer.save(step, pieces, notes);
    writer.wait();
    return (std::filesystem::path(directory) / checkpoint::checkpoint_name(step)).string();
  });
}

py::list tensors_of(const checkpoint::Checkpoint& opened) {
  py::list rows;
  for (const checkpoint::StoredTensor& tensor : opened.tensors())
    rows.append(py::make_tuple(tensor.name, std::string(to_string(tensor.kind)), tensor.state, tensor.shape,
                               tensor.aliases));
  return rows;
}

}  // namespace

void bind_checkpoint(py::module_& module) {
  py::class_<checkpoint::Checkpoint>(module, "Checkpoint")
      .def(py::init([](const std::string& path) {
             return without_gil([&] { return checkpoint::open_checkpoint(path); });
           }),
           py::arg("path"))
      .def_property_readonly("path", [](const checkpoint::Checkpoint& c) { return c.path().string(); })
      .def_property_readonly("step", &checkpoint::Checkpoint::step)
      .def_property_readonly("notes", &checkpoint::Checkpoint::notes)
      .def("tensors", &tensors_of)
      .def(
          "read",
          [](const checkpoint::Checkpoint& opened, const std::string& name, const std::string& state) {
            return to_object(without_gil([&] { return opened.read(name, state); }));
          },
          py::arg("name"), py::arg("state") = "")
      .def("verify", [](const checkpoint::Checkpoint& opened) {
        std::vector<std::string> problems;
        for (const Diagnostic& found : without_gil([&] { return opened.verify(); }))
          problems.push_back(to_string(found));
        return problems;
      });
  module.def("save_checkpoint", &save, py::arg("directory"), py::arg("step"), py::arg("entries"),
             py::arg("notes"), py::arg("keep"));
}

}  // namespace penstock::python
