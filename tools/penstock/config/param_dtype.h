// The option `--param-dtype`: the dtypes in which the parameters of a run are stored and computed with.
#pragma once

#include <penstock/train/options.h>

#include <c10/core/ScalarType.h>

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace penstock::tool {

//! The values of the option.
enum class ParamDtype {
  Auto,      //!< that of the model
  Float32,   //!< converts a model with parameters in bfloat16 or float16
  Bfloat16,  //!< converts a model with parameters in float16, and rounds float32 parameters
};
std::string_view to_string(ParamDtype dtype);
const std::vector<std::pair<std::string, ParamDtype>>& param_dtype_choices();
inline constexpr const char* kParamDtypeHelp =
    "dtype of the parameters that stages compute with; auto: that of the model. The optimizer always updates "
    "float32 master weights";

//! The dtype to which a model with parameters in another reduced dtype is converted; nullopt: none.
std::optional<at::ScalarType> converted_dtype(ParamDtype dtype);
//! What the run does with the parameters of the converted model.
train::ParameterDtype parameter_dtype(ParamDtype dtype);

//! The dtypes of one parameter in a run.
struct StoredDtypes {
  at::ScalarType stored;    //!< of the values that the optimizer updates
  at::ScalarType computed;  //!< of the values that the stages compute with

  bool has_copy() const { return stored != computed; }
};
//! `dtype`: that of the parameter in the converted model.
StoredDtypes stored_dtypes(at::ScalarType dtype, bool is_trained, train::ParameterDtype parameters);

}  // namespace penstock::tool
