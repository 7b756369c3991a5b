// The extension module penstock._torch: the runtime behind penstock.pipelining, and checkpoints.
#include "../errors.h"
#include "checkpoint.h"
#include "pipeline.h"
#include "world.h"

PYBIND11_MODULE(_torch, module) {
  module.doc() = "The runtime behind penstock.pipelining and penstock.checkpoint. Not a public interface.";
  penstock::python::register_errors();
  penstock::python::bind_checkpoint(module);
  penstock::python::bind_world(module);
  penstock::python::bind_pipeline(module);
}
