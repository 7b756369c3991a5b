// Checkpoints for Python.
#pragma once

#include <pybind11/pybind11.h>

namespace penstock::python {

void bind_checkpoint(pybind11::module_& module);

}  // namespace penstock::python
