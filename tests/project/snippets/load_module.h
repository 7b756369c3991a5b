// docs/load-module.md also shows the TorchScript program that it replaces.
#include <torch/script.h>
