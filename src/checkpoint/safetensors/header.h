// Parses and writes the header of a safetensors file.
#pragma once

#include <penstock/checkpoint/safetensors.h>

#include <array>

namespace penstock::checkpoint {

//! Number of bytes at the start of a file that contain the header length.
constexpr std::uint64_t kSafetensorsPrefix = 8;
//! Maximum header length (that of the Python package).
constexpr std::uint64_t kMaxSafetensorsHeader = 100'000'000;

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;  //!< ordered by byte offset
  SafetensorsMetadata metadata;
};

//! Reads the header length from the prefix of a file. Throws ParseError if it exceeds `file_size`.
std::uint64_t safetensors_header_length(std::span<const std::uint8_t> prefix, std::uint64_t file_size,
                                        const std::string& where);

//! Parses and validates an untrusted header. `data_size` is the number of bytes after it. Throws ParseError,
//! or returns entries that cover those bytes exactly, each with the size that its dtype and shape require.
SafetensorsHeader parse_safetensors_header(std::string_view text, std::uint64_t data_size,
                                           const std::string& where);

//! Sorts entries as the Python package does (larger elements first, so that all are aligned; then by name),
//! assigns their offsets, and returns prefix and header. Throws UsageError for dtypes and names that the
//! format does not support.
std::string layout_safetensors(std::vector<SafetensorsEntry>& entries, const SafetensorsMetadata& metadata);

//! Returns the sort key of a dtype: tensors with a smaller key come first in a file.
std::size_t safetensors_dtype_order(at::ScalarType dtype);

//! Throws ParseError if an element of a bool tensor is neither 0 nor 1: kernels that read such a bool have
//! undefined behavior.
void check_bools(at::ScalarType dtype, std::span<const std::uint8_t> bytes, const std::string& where);

//! Returns the size in bytes of a tensor; nullopt if it does not fit in 63 bits.
std::optional<std::uint64_t> checked_nbytes(std::span<const std::int64_t> shape, at::ScalarType dtype);

}  // namespace penstock::checkpoint
