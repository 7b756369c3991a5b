// A module of Python as the computation of a stage.
#pragma once

#include "values.h"

#include <penstock/runtime/stage_module.h>

#include <memory>

namespace penstock::python {

//! Makes a stage module from a Python object with the methods of `penstock.pipelining._engine.StageCalls`.
//! The output of the last stage is kept as it is, because it goes only to the loss.
std::shared_ptr<runtime::StageModule> make_stage_module(py::object calls, bool last);

}  // namespace penstock::python
