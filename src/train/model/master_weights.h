// Which parameters of a run have float32 master weights: trained ones in a reduced dtype (bfloat16, float16).
#pragma once

#include <penstock/runtime/stage_module.h>
#include <penstock/train/model.h>
#include <penstock/train/parameter_groups.h>

#include <string>
#include <vector>

namespace penstock::train {

//! Whether a run trains a parameter of the module that has a reduced dtype.
bool trains_reduced_parameters(const runtime::StageModule& module);

//! The names of the reduced dtypes of the parameters that a run trains: `bfloat16`. Empty if the model does
//! not list its parameters.
std::vector<std::string> reduced_parameter_dtypes(const Model& model, const ParameterGroups& groups);

//! Whether a parameter is float16, trained or not: small gradients then become 0 unless the loss is scaled.
bool has_float16_parameters(const Model& model);

}  // namespace penstock::train
