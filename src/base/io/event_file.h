// Event files of TensorBoard: records with checksums (TFRecord), each with an `Event` message of scalars.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace penstock {

//! The checksum of TFRecord files: CRC-32C, rotated and with a constant added, so that a checksum of data
//! that contains checksums is not degenerate.
std::uint32_t masked_crc32c(std::string_view bytes);

//! One record of a TFRecord file: length, checksum of the length, data, checksum of the data.
std::string tf_record(std::string_view data);

//! A value with its name: `loss`.
using Scalar = std::pair<std::string, double>;

//! A new event file in a directory. Every call writes one record and flushes it.
class EventFile {
 public:
  //! Creates the directory if necessary. Values of this and later steps in older files of the directory are
  //! obsolete: TensorBoard ignores them. Throws StorageError.
  EventFile(const std::filesystem::path& directory, std::int64_t first_step);

  //! Writes the scalars of a step. Values are stored as 32-bit floats. Throws StorageError.
  void write(std::int64_t step, std::span<const Scalar> scalars);

  const std::filesystem::path& path() const { return path_; }

 private:
  void append(const std::string& event);

  std::filesystem::path path_;
  std::ofstream file_;
};

}  // namespace penstock
