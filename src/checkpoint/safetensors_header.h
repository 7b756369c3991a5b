// The header of a safetensors file as text and as data, without any element.
#pragma once

#include <penstock/checkpoint/safetensors.h>

#include <array>

namespace penstock {

//! The first bytes of a file: the length of the header that follows.
constexpr std::uint64_t safetensors_prefix = 8;
//! Longer headers are refused (the limit of Python's package).
constexpr std::uint64_t safetensors_header_limit = 100'000'000;

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;  //!< in the order of their bytes
  SafetensorsMetadata metadata;
};

//! The header's length from the prefix of a file of `file_size` bytes. ParseError if the file cannot hold it.
std::uint64_t safetensors_header_length(std::span<const std::uint8_t> prefix, std::uint64_t file_size,
                                        const std::string& where);

//! Reads and checks a header; `data_size` is what the file holds behind it. Whatever the text, a ParseError
//! or entries whose places fill those bytes exactly, each of the size that dtype and shape ask for.
SafetensorsHeader parse_safetensors_header(std::string_view text, std::uint64_t data_size,
                                           const std::string& where);

//! Puts entries in the order that the format's writers use (larger elements first, so that all are aligned;
//! then by name), gives them their places, and returns prefix and header. UsageError for what the format
//! cannot hold.
std::string layout_safetensors(std::vector<SafetensorsEntry>& entries, const SafetensorsMetadata& metadata);

//! Where tensors of this dtype stand in a file: a smaller number is earlier.
std::size_t safetensors_dtype_place(at::ScalarType dtype);

//! ParseError if bytes of bools are neither 0 nor 1: reading such a bool is undefined behaviour in every
//! kernel.
void check_bools(at::ScalarType dtype, std::span<const std::uint8_t> bytes, const std::string& where);

//! Bytes of a tensor of this shape and dtype; nothing if they do not fit 63 bits.
std::optional<std::uint64_t> checked_nbytes(std::span<const std::int64_t> shape, at::ScalarType dtype);

}  // namespace penstock
