// The manifest of a checkpoint: a JSON file that lists all tensors and the locations of their pieces,
// protected by a checksum.
#pragma once

#include <penstock/checkpoint/checkpoint.h>

#include <string>
#include <string_view>
#include <vector>

namespace penstock::checkpoint {

constexpr const char* kManifestName = "manifest.json";

struct Manifest {
  std::int64_t step = 0;
  Notes notes;
  std::vector<StoredFile> files;
  std::vector<StoredTensor> tensors;  //!< sorted by name, then state
};

std::string manifest_text(const Manifest& manifest);

//! Parses and validates untrusted text. Throws ParseError, or returns a manifest in which every region is
//! inside its tensor, the pieces cover every tensor, and file names do not leave the directory.
Manifest parse_manifest(std::string_view text, const std::string& where);

//! Formats a checksum as eight hexadecimal digits.
std::string crc_text(std::uint32_t crc);

}  // namespace penstock::checkpoint
