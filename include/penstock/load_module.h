// Loads a model exported by Python's `torch.export.save` as a torch::nn module. Not part of
// `penstock/penstock.h`, because it includes torch::nn.
#pragma once

#include <penstock/base/error.h>
#include <penstock/graph/exported_module.h>
#include <penstock/value/microbatch.h>

namespace penstock {

using graph::ExportedModule;
using graph::load_module;
using graph::OperatorError;
using value::Args;
using value::Kwargs;

}  // namespace penstock
