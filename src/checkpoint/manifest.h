// The manifest of a checkpoint: what it holds and where. One JSON file, guarded by its own checksum.
#pragma once

#include <penstock/checkpoint/checkpoint.h>

#include <string>
#include <string_view>
#include <vector>

namespace penstock {

constexpr const char* manifest_name = "manifest.json";

struct Manifest {
  std::int64_t step = 0;
  Notes notes;
  std::vector<StoredFile> files;
  std::vector<StoredTensor> tensors;  //!< sorted by name, then state
};

std::string manifest_text(const Manifest& manifest);

//! Whatever the text, a ParseError or a manifest whose parts lie inside their tensors, whose file names name
//! files beside it, and whose tensors are all there.
Manifest parse_manifest(std::string_view text, const std::string& where);

//! Eight hexadecimal digits.
std::string crc_text(std::uint32_t crc);

}  // namespace penstock
