// Access to the private parts of ExportedModule, for tensor parallelism.
#pragma once

#include <penstock/graph/exported_module.h>
#include <penstock/graph/graph_module.h>

namespace penstock::graph {

struct Access {
  //! A graph module with the same graph and tensors.
  static GraphModule graph_module(const ExportedModuleImpl& module);
  //! Runs the graph of `changed` from now on, and registers its parameters. `changed` has the same slots.
  static void adopt(ExportedModuleImpl& module, const GraphModule& changed);
};

}  // namespace penstock::graph
