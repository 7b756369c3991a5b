// docs/load-module.md also shows the TorchScript program that it replaces.
#include <penstock/load_module.h>

#include <torch/script.h>

extern ps::ExportedModule model;
