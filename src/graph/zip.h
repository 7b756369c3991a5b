// Reads the records of an uncompressed zip file, which is what libtorch writes. The file is mapped, so that
// only the records that are asked for are read. (libtorch's own reader is built without the check of
// checksums.)
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
  //! ParseError if it is no zip file or its directory is damaged.
  explicit ZipFile(const std::string& path);
  ~ZipFile();
  ZipFile(const ZipFile&) = delete;
  ZipFile& operator=(const ZipFile&) = delete;

  bool has(const std::string& name) const { return records_.contains(name); }
  std::vector<std::string> names() const;

  //! The bytes of a record, valid as long as this object. ParseError if it is missing, compressed, reaches
  //! beyond the file, or does not have its checksum.
  std::span<const std::uint8_t> read(const std::string& name) const;
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
  [[noreturn]] void fail(const std::string& message) const;

  std::string path_;
  std::span<const std::uint8_t> bytes_;
  std::map<std::string, Record> records_;  //!< without the folder that all names begin with
};

}  // namespace penstock
