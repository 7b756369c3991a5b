// Names of dtypes, layouts and memory formats.
#include "graph/ir/enums.h"

#include "graph/ir/schema.h"

#include <penstock/value/tensor_meta.h>

#include <array>
#include <utility>

namespace penstock::graph {
namespace {

constexpr std::array<std::pair<std::string_view, c10::Layout>, 6> kLayouts = {
    {{"strided", c10::Layout::Strided},
     {"sparse_coo", c10::Layout::Sparse},
     {"sparse_csr", c10::Layout::SparseCsr},
     {"sparse_csc", c10::Layout::SparseCsc},
     {"sparse_bsr", c10::Layout::SparseBsr},
     {"sparse_bsc", c10::Layout::SparseBsc}}};

constexpr std::array<std::pair<std::string_view, c10::MemoryFormat>, 4> kMemoryFormats = {
    {{"contiguous_format", c10::MemoryFormat::Contiguous},
     {"preserve_format", c10::MemoryFormat::Preserve},
     {"channels_last", c10::MemoryFormat::ChannelsLast},
     {"channels_last_3d", c10::MemoryFormat::ChannelsLast3d}}};

template <class Table>
std::string name_in(const Table& table, std::int64_t value) {
  for (const auto& [name, number] : table) {
    if (static_cast<std::int64_t>(number) == value) return std::string(name);
  }
  return std::to_string(value);
}

template <class Table>
std::optional<std::int64_t> value_in(const Table& table, std::string_view text) {
  for (const auto& [name, number] : table) {
    if (name == text) return static_cast<std::int64_t>(number);
  }
  return std::nullopt;
}

}  // namespace

EnumKind enum_kind(const c10::Argument& argument) {
  switch (without_optional(*argument.real_type()).kind()) {
    case c10::TypeKind::ScalarTypeType:
      return EnumKind::Dtype;
    case c10::TypeKind::LayoutType:
      return EnumKind::Layout;
    case c10::TypeKind::MemoryFormatType:
      return EnumKind::MemoryFormat;
    default:
      return EnumKind::None;
  }
}

std::string enum_text(EnumKind kind, std::int64_t value) {
  switch (kind) {
    case EnumKind::None:
      return std::to_string(value);
    case EnumKind::Dtype:
      return value::dtype_name(static_cast<at::ScalarType>(value));
    case EnumKind::Layout:
      return name_in(kLayouts, value);
    case EnumKind::MemoryFormat:
      return name_in(kMemoryFormats, value);
  }
  return {};
}

bool is_enum_value(EnumKind kind, std::int64_t value) {
  const auto below = [&](auto count) { return value >= 0 && value < static_cast<std::int64_t>(count); };
  switch (kind) {
    case EnumKind::None:
      return true;
    case EnumKind::Dtype:
      return below(at::ScalarType::Undefined);
    case EnumKind::Layout:
      return below(c10::Layout::NumOptions);
    case EnumKind::MemoryFormat:
      return below(c10::MemoryFormat::NumOptions);
  }
  return false;
}

std::optional<at::ScalarType> try_parse_dtype(std::string_view name) {
  for (int i = 0; i < static_cast<int>(at::ScalarType::NumOptions); ++i) {
    const auto dtype = static_cast<at::ScalarType>(i);
    if (dtype != at::ScalarType::Undefined && value::dtype_name(dtype) == name) return dtype;
  }
  return std::nullopt;
}

std::optional<std::int64_t> try_parse_enum(EnumKind kind, std::string_view text) {
  switch (kind) {
    case EnumKind::None:
      return std::nullopt;
    case EnumKind::Dtype:
      if (const auto dtype = try_parse_dtype(text)) return static_cast<std::int64_t>(*dtype);
      return std::nullopt;
    case EnumKind::Layout:
      return value_in(kLayouts, text);
    case EnumKind::MemoryFormat:
      return value_in(kMemoryFormats, text);
  }
  return std::nullopt;
}

}  // namespace penstock::graph
