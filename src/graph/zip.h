// Reads the records of an uncompressed zip file, which is what libtorch writes. Only the directory and the
// records that are asked for are read, by position: a mapped file that becomes shorter would end the process.
// (libtorch's own reader is built without the check of checksums.)
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
  //! UsageError if it cannot be opened or is no regular file, ParseError if it is no zip file or its
  //! directory is damaged.
  explicit ZipFile(const std::string& path);
  ~ZipFile();
  ZipFile(const ZipFile&) = delete;
  ZipFile& operator=(const ZipFile&) = delete;

  bool has(const std::string& name) const { return records_.contains(name); }
  std::vector<std::string> names() const;

  //! The bytes of a record. ParseError if it is missing, compressed, reaches beyond the file, or does not
  //! have its checksum.
  std::vector<std::uint8_t> read(const std::string& name) const;
  //! The same into memory of the caller's, of the size of the record.
  void read(const std::string& name, std::span<std::uint8_t> target) const;
  //! In bytes; ParseError if it is missing, or is larger than the file.
  std::uint64_t size(const std::string& name) const;

 private:
  struct Record {
    std::uint64_t offset = 0;  //!< of the local header
    std::uint64_t size = 0;
    std::uint64_t stored = 0;
    std::uint32_t crc = 0;
    std::uint16_t method = 0;
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
  std::map<std::string, Record> records_;  //!< without the folder that all names begin with
};

}  // namespace penstock
