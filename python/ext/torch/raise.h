// Errors on their way from the library to Python.
#pragma once

#include <pybind11/pybind11.h>

#include <exception>
#include <optional>
#include <utility>

namespace penstock::python {

namespace py = pybind11;

//! Raises the error in Python: an exception of Python that a stage, a loss or a hook raised as itself, with a
//! note that says where; an error of the library as the class of the same name in `penstock.errors`. Needs
//! the GIL.
[[noreturn]] void raise(const std::exception_ptr& error);

//! Runs `body` without the GIL and raises its errors in Python.
template <class Body>
auto without_gil(Body&& body) {
  std::exception_ptr error;
  {
    const py::gil_scoped_release release;
    try {
      return body();
    } catch (...) {
      error = std::current_exception();
    }
  }
  raise(error);
}

}  // namespace penstock::python
