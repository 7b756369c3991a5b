// Reads the zip directory, including zip64. Checks every offset before using it.
#include "base/io/zip.h"

#include "base/io/crc32.h"
#include "base/io/regular_file.h"
#include "base/io/storage_error.h"
#include "base/text.h"

#include <penstock/base/error.h>

#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace penstock {
namespace {

constexpr std::uint32_t kLocalMark = 0x04034b50, kEntryMark = 0x02014b50, kEndMark = 0x06054b50,
                        kEnd64Mark = 0x06064b50, kLocator64Mark = 0x07064b50, kDescriptorMark = 0x08074b50;
constexpr std::size_t kEndSize = 22, kEnd64Size = 56, kLocatorSize = 20, kEntrySize = 46, kLocalSize = 30;

//! Reads a little-endian integer. Precondition: it is within the bytes.
template <class Number>
Number number_at(std::span<const std::uint8_t> bytes, std::size_t at) {
  Number number = 0;
  for (std::size_t i = 0; i < sizeof(Number); ++i) {
    number = static_cast<Number>(number | static_cast<Number>(static_cast<Number>(bytes[at + i]) << (8 * i)));
  }
  return number;
}

//! A path or the name of a record for a message.
std::string shown(const std::string& name) {
  return quote(name, 200);
}

}  // namespace

ZipFile::ZipFile(const std::string& path) : path_(path) {
  const RegularFile opened = open_regular_file(path);
  if (opened.error != 0) throw_storage_error("open", path, opened.error, opened.problem);
  file_ = opened.descriptor;
  size_ = opened.size;
  try {
    read_directory(find_directory());
  } catch (...) {
    ::close(file_);
    throw;
  }
}

ZipFile::~ZipFile() {
  ::close(file_);
}

void ZipFile::read_at(std::uint64_t offset, std::span<std::uint8_t> target) const {
  while (!target.empty()) {
    const ssize_t got = ::pread(file_, target.data(), target.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw_storage_error("read", path_, errno);
    if (got == 0)
      throw_storage_error(
          "read", path_, EIO,
          str_cat("it ends at byte ", offset, " but had ", size_, " bytes when it was opened"));
    offset += static_cast<std::uint64_t>(got);
    target = target.subspan(static_cast<std::size_t>(got));
  }
}

std::vector<std::uint8_t> ZipFile::bytes_at(std::uint64_t offset, std::uint64_t size) const {
  std::vector<std::uint8_t> bytes(size);
  read_at(offset, bytes);
  return bytes;
}

void ZipFile::fail(const std::string& message) const {
  throw ParseError(shown(path_) + ": " + message, {},
                   "the file is damaged, truncated, or not written by torch.export.save");
}

ZipFile::Directory ZipFile::find_directory() const {
  if (size_ < kEndSize) fail("the file is too short to be a zip file");
  // A comment of at most 64 KiB follows the end record; a zip64 locator may precede it.
  const std::uint64_t length = std::min<std::uint64_t>(size_, kLocatorSize + kEndSize + 0xffff);
  const std::vector<std::uint8_t> tail = bytes_at(size_ - length, length);
  const std::span<const std::uint8_t> bytes(tail);
  for (std::size_t at = bytes.size() - kEndSize + 1; at-- > 0;) {
    if (number_at<std::uint32_t>(bytes, at) != kEndMark ||
        at + kEndSize + number_at<std::uint16_t>(bytes, at + 20) != bytes.size()) {
      continue;
    }
    if (at < kLocatorSize || number_at<std::uint32_t>(bytes, at - kLocatorSize) != kLocator64Mark) {
      return {number_at<std::uint32_t>(bytes, at + 16), number_at<std::uint32_t>(bytes, at + 12),
              number_at<std::uint16_t>(bytes, at + 10)};
    }
    const auto place = number_at<std::uint64_t>(bytes, at - kLocatorSize + 8);
    if (place > size_ || size_ - place < kEnd64Size) fail("the offset of the zip64 directory is invalid");
    const std::vector<std::uint8_t> end64 = bytes_at(place, kEnd64Size);
    if (number_at<std::uint32_t>(end64, 0) != kEnd64Mark)
      fail("the offset of the zip64 directory is invalid");
    return {number_at<std::uint64_t>(end64, 48), number_at<std::uint64_t>(end64, 40),
            number_at<std::uint64_t>(end64, 32)};
  }
  fail("the file has no zip directory at its end");
}

void ZipFile::read_directory(const Directory& directory) {
  if (directory.offset > size_ || directory.size > size_ - directory.offset) {
    fail("the directory extends beyond the end of the file");
  }
  const std::vector<std::uint8_t> content = bytes_at(directory.offset, directory.size);
  const std::span<const std::uint8_t> table(content);
  std::size_t at = 0;
  for (std::uint64_t i = 0; i < directory.count; ++i) {
    if (table.size() - at < kEntrySize || number_at<std::uint32_t>(table, at) != kEntryMark) {
      fail(str_cat("entry ", i, " of the directory is damaged"));
    }
    const std::size_t name_size = number_at<std::uint16_t>(table, at + 28);
    const std::size_t extra_size = number_at<std::uint16_t>(table, at + 30);
    const std::size_t comment_size = number_at<std::uint16_t>(table, at + 32);
    if (table.size() - at - kEntrySize < name_size + extra_size + comment_size) {
      fail(str_cat("entry ", i, " of the directory is truncated"));
    }
    Record record{.offset = number_at<std::uint32_t>(table, at + 42),
                  .size = number_at<std::uint32_t>(table, at + 24),
                  .stored = number_at<std::uint32_t>(table, at + 20),
                  .crc = number_at<std::uint32_t>(table, at + 16),
                  .method = number_at<std::uint16_t>(table, at + 10),
                  .entry = directory.offset + at};
    std::string name(reinterpret_cast<const char*>(table.data()) + at + kEntrySize, name_size);
    const auto extra = table.subspan(at + kEntrySize + name_size, extra_size);
    for (std::size_t e = 0; e + 4 <= extra.size();) {
      const std::size_t size = number_at<std::uint16_t>(extra, e + 2);
      if (extra.size() - e - 4 < size) fail("entry " + shown(name) + " has a damaged extra field");
      if (number_at<std::uint16_t>(extra, e) == 1) {
        std::size_t next = e + 4;
        for (std::uint64_t* field : {&record.size, &record.stored, &record.offset}) {
          if (*field != 0xffffffff) continue;
          if (next + 8 > e + 4 + size) fail("entry " + shown(name) + " has a damaged extra field");
          *field = number_at<std::uint64_t>(extra, next);
          next += 8;
        }
      }
      e += 4 + size;
    }
    const std::size_t slash = name.find('/');
    if (slash != std::string::npos) name.erase(0, slash + 1);
    if (!records_.emplace(name, record).second) fail("duplicate record " + shown(name));
    at += kEntrySize + name_size + extra_size + comment_size;
  }
}

std::vector<std::string> ZipFile::names() const {
  std::vector<std::string> names;
  for (const auto& [name, record] : records_) names.push_back(name);
  return names;
}

const ZipFile::Record& ZipFile::find(const std::string& name) const {
  const auto it = records_.find(name);
  if (it == records_.end()) fail("missing record " + shown(name));
  return it->second;
}

std::uint64_t ZipFile::size(const std::string& name) const {
  const Record& record = find(name);
  if (record.size > size_) fail("record " + shown(name) + " is truncated");
  return record.size;
}

std::vector<std::uint8_t> ZipFile::read(const std::string& name) const {
  std::vector<std::uint8_t> bytes(size(name));
  read(name, bytes);
  return bytes;
}

ZipFile::Location ZipFile::locate(const std::string& name) const {
  const Record& record = find(name);
  if (record.method != 0 || record.stored != record.size) {
    throw ParseError(shown(path_) + ": record " + shown(name) + " is compressed", {},
                     "write the archive with torch.export.save, which does not compress");
  }
  const auto misplaced = [&] { fail("the offset of record " + shown(name) + " is invalid"); };
  if (record.offset > size_ || size_ - record.offset < kLocalSize) misplaced();
  const std::vector<std::uint8_t> local = bytes_at(record.offset, kLocalSize);
  if (number_at<std::uint32_t>(local, 0) != kLocalMark) misplaced();
  const std::uint64_t skip =
      kLocalSize + number_at<std::uint16_t>(local, 26) + number_at<std::uint16_t>(local, 28);
  const std::uint64_t room = size_ - record.offset;
  if (room < skip || room - skip < record.size) fail("record " + shown(name) + " is truncated");
  constexpr std::uint64_t local_checksum = 14, entry_checksum = 16;
  Location location{
      record.offset + skip, record.size, {record.offset + local_checksum, record.entry + entry_checksum}};
  constexpr std::uint16_t has_descriptor = 8;
  if ((number_at<std::uint16_t>(local, 6) & has_descriptor) == 0) return location;
  // A descriptor after the data, with an optional mark, repeats the checksum; that of the header may be 0.
  if (number_at<std::uint32_t>(local, local_checksum) == 0)
    location.checksums.erase(location.checksums.begin());
  const std::uint64_t after = location.data + location.size;
  if (size_ - after < 8) return location;
  const bool marked = number_at<std::uint32_t>(bytes_at(after, 4), 0) == kDescriptorMark;
  location.checksums.push_back(after + (marked ? 4 : 0));
  return location;
}

void ZipFile::read(const std::string& name, std::span<std::uint8_t> target) const {
  const Location location = locate(name);
  if (target.size() != location.size)
    throw UsageError("record " + shown(name) + " and the target differ in size");
  read_at(location.data, target);
  if (crc32(target) != find(name).crc)
    fail("record " + shown(name) + " is damaged: the checksum does not match");
}

}  // namespace penstock
