// The pipeline of this rank, as Python drives it.
#pragma once

#include <pybind11/pybind11.h>

namespace penstock::python {

void bind_pipeline(pybind11::module_& module);

}  // namespace penstock::python
