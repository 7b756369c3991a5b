// Data parallelism of Python (DDP, fully_shard, replicate) behind the interface of the executor.
#pragma once

#include "values.h"

#include <penstock/runtime/data_parallel.h>

#include <memory>

namespace penstock::python {

//! Calls the methods of `penstock.pipelining._data_parallel.StageHooks`.
std::shared_ptr<runtime::DataParallel> make_data_parallel(py::object hooks);

}  // namespace penstock::python
