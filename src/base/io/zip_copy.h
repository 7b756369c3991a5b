// Copies a zip file and replaces the contents of some records. All other bytes stay the same.
#pragma once

#include "base/io/zip.h"

#include <filesystem>
#include <span>
#include <string>

namespace penstock {

class ZipCopy {
 public:
  //! Copies the file to a temporary file in the directory of `target`. Throws StorageError.
  ZipCopy(const std::filesystem::path& source, std::filesystem::path target);
  //! Removes the temporary file unless `finish` was called.
  ~ZipCopy();
  ZipCopy(const ZipCopy&) = delete;
  ZipCopy& operator=(const ZipCopy&) = delete;

  //! The source.
  const ZipFile& zip() const { return zip_; }
  //! Replaces a record by one of the same size. Throws UsageError if the sizes differ, StorageError if it
  //! cannot be written.
  void replace(const std::string& name, std::span<const std::uint8_t> bytes);
  //! Flushes the file and renames it to `target`. Throws StorageError.
  void finish();

 private:
  void write_at(std::uint64_t offset, std::span<const std::uint8_t> bytes);

  ZipFile zip_;
  std::filesystem::path target_, temporary_;
  int file_ = -1;
};

}  // namespace penstock
