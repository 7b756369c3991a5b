// The dtypes of parameters in a run.
#include "config/param_dtype.h"

#include "config/recipe_settings.h"

namespace penstock::tool {

std::string_view to_string(ParamDtype dtype) {
  switch (dtype) {
    case ParamDtype::Auto:
      return "auto";
    case ParamDtype::Float32:
      return "float32";
    case ParamDtype::Bfloat16:
      return "bf16";
  }
  return "";
}

const std::vector<std::pair<std::string, ParamDtype>>& param_dtype_choices() {
  static const auto choices = named({ParamDtype::Auto, ParamDtype::Float32, ParamDtype::Bfloat16});
  return choices;
}

std::optional<at::ScalarType> converted_dtype(ParamDtype dtype) {
  if (dtype == ParamDtype::Auto) return std::nullopt;
  return dtype == ParamDtype::Float32 ? at::kFloat : at::kBFloat16;
}

train::ParameterDtype parameter_dtype(ParamDtype dtype) {
  return dtype == ParamDtype::Bfloat16 ? train::ParameterDtype::Bfloat16 : train::ParameterDtype::Auto;
}

StoredDtypes stored_dtypes(at::ScalarType dtype, bool is_trained, train::ParameterDtype parameters) {
  StoredDtypes dtypes{dtype, dtype};
  if (is_trained && at::isReducedFloatingType(dtype)) dtypes.stored = at::kFloat;
  if (parameters == train::ParameterDtype::Bfloat16 && at::isFloatingType(dtype))
    dtypes.computed = at::kBFloat16;
  return dtypes;
}

}  // namespace penstock::tool
