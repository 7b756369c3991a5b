// The dtypes of the format and their names.
#include "checkpoint/safetensors/header.h"

#include <c10/core/ScalarType.h>

#include <array>
#include <utility>

namespace penstock::checkpoint {
namespace {

// In the order in which the Python package writes tensors.
constexpr std::array<std::pair<std::string_view, at::ScalarType>, 19> kDtypeNames = {{
    {"U64", at::ScalarType::UInt64},
    {"I64", at::ScalarType::Long},
    {"F64", at::ScalarType::Double},
    {"C64", at::ScalarType::ComplexFloat},
    {"F32", at::ScalarType::Float},
    {"U32", at::ScalarType::UInt32},
    {"I32", at::ScalarType::Int},
    {"BF16", at::ScalarType::BFloat16},
    {"F16", at::ScalarType::Half},
    {"U16", at::ScalarType::UInt16},
    {"I16", at::ScalarType::Short},
    {"F8_E5M2FNUZ", at::ScalarType::Float8_e5m2fnuz},
    {"F8_E4M3FNUZ", at::ScalarType::Float8_e4m3fnuz},
    {"F8_E8M0", at::ScalarType::Float8_e8m0fnu},
    {"F8_E4M3", at::ScalarType::Float8_e4m3fn},
    {"F8_E5M2", at::ScalarType::Float8_e5m2},
    {"I8", at::ScalarType::Char},
    {"U8", at::ScalarType::Byte},
    {"BOOL", at::ScalarType::Bool},
}};

}  // namespace

std::string_view safetensors_dtype_name(at::ScalarType dtype) {
  for (const auto& [name, type] : kDtypeNames) {
    if (type == dtype) return name;
  }
  return {};
}

std::optional<at::ScalarType> safetensors_dtype(std::string_view name) {
  for (const auto& [known, type] : kDtypeNames) {
    if (known == name) return type;
  }
  return std::nullopt;
}

std::size_t safetensors_dtype_order(at::ScalarType dtype) {
  std::size_t index = 0;
  while (index < kDtypeNames.size() && kDtypeNames[index].second != dtype) ++index;
  return index;
}

}  // namespace penstock::checkpoint
