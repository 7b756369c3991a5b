// Conversion between Python objects and the values of a stage. Callers hold the GIL.
#pragma once

#include <ATen/core/ivalue.h>
#include <pybind11/pybind11.h>

#include <memory>
#include <utility>

namespace penstock::python {

namespace py = pybind11;

//! A Python object that may be copied and destroyed without the GIL. `get` needs it.
class SharedObject {
 public:
  SharedObject() = default;
  explicit SharedObject(py::object object) : object_(new py::object(std::move(object)), &drop) {}

  explicit operator bool() const { return object_ != nullptr; }
  const py::object& get() const { return *object_; }

 private:
  static void drop(const py::object* object);

  std::shared_ptr<const py::object> object_;
};

//! Converts tensors, None, numbers, strings and exact tuples, lists and dicts of them. Distributed tensors of
//! Python become a dict of their local shard and a description. Any other object is kept as it is.
c10::IValue to_value(py::handle object);
//! Converts what `to_value` does, and also dataclasses, named tuples and other nodes of PyTorch's pytrees.
c10::IValue to_sendable(py::handle object);
//! Keeps the object as it is, whatever its type.
c10::IValue hold(py::handle object);
//! The inverse of the functions above.
py::object to_object(const c10::IValue& value);

//! Returns the first object in the tree that was kept as it is, or null.
PyObject* find_held(const c10::IValue& value);

}  // namespace penstock::python
