// Reads uncompressed zip files, as libtorch writes them. Reads only the directory and the requested records.
// Uses positional reads, because truncating a mapped file would kill the process. (libtorch's own reader is
// built without checksum verification.)
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace penstock {

class ZipFile {
 public:
  //! Throws a StorageError if the path cannot be opened or is not a regular file, and a ParseError if it is
  //! not a zip file or its directory is damaged.
  explicit ZipFile(const std::string& path);
  ~ZipFile();
  ZipFile(const ZipFile&) = delete;
  ZipFile& operator=(const ZipFile&) = delete;

  bool has(const std::string& name) const { return records_.contains(name); }
  std::vector<std::string> names() const;

  //! Returns the bytes of a record. Throws a ParseError if it is missing, compressed, truncated, or its
  //! checksum does not match, and a StorageError if the file cannot be read.
  std::vector<std::uint8_t> read(const std::string& name) const;
  //! Reads into `target`, which must have the size of the record.
  void read(const std::string& name, std::span<std::uint8_t> target) const;
  //! In bytes. Throws a ParseError if the record is missing or larger than the file.
  std::uint64_t size(const std::string& name) const;

  //! The byte offsets of a record in the file.
  struct Location {
    std::uint64_t data = 0, size = 0;
    std::vector<std::uint64_t> checksums{};  //!< of each stored copy of its CRC-32, 4 bytes
  };
  //! Throws like `read`, except for a checksum that does not match.
  Location locate(const std::string& name) const;

 private:
  struct Record {
    std::uint64_t offset = 0;  //!< of the local header
    std::uint64_t size = 0;
    std::uint64_t stored = 0;
    std::uint32_t crc = 0;
    std::uint16_t method = 0;
    std::uint64_t entry = 0;  //!< offset of its entry in the directory
  };

  struct Directory {
    std::uint64_t offset = 0, size = 0, count = 0;
  };

  const Record& find(const std::string& name) const;
  Directory find_directory() const;
  void read_directory(const Directory& directory);
  std::vector<std::uint8_t> bytes_at(std::uint64_t offset, std::uint64_t size) const;
  void read_at(std::uint64_t offset, std::span<std::uint8_t> target) const;
  [[noreturn]] void fail(const std::string& message) const;

  std::string path_;
  int file_ = -1;
  std::uint64_t size_ = 0;
  std::map<std::string, Record> records_;  //!< names without the common top-level folder
};

}  // namespace penstock
