// Reads the zip directory, including zip64. Checks every offset before using it.
#include "base/io/zip.h"

#include "base/io/crc32.h"
#include "base/io/regular_file.h"
#include "base/text.h"

#include <penstock/base/error.h>

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace penstock {
namespace {

constexpr std::uint32_t local_mark = 0x04034b50, entry_mark = 0x02014b50, end_mark = 0x06054b50,
                        end64_mark = 0x06064b50, locator64_mark = 0x07064b50;
constexpr std::size_t end_size = 22, end64_size = 56, locator_size = 20, entry_size = 46, local_size = 30;

//! Reads a little-endian integer. Precondition: it is within the bytes.
template <class Number>
Number number_at(std::span<const std::uint8_t> bytes, std::size_t at) {
  Number number = 0;
  for (std::size_t i = 0; i < sizeof(Number); ++i) {
    number = static_cast<Number>(number | static_cast<Number>(static_cast<Number>(bytes[at + i]) << (8 * i)));
  }
  return number;
}

}  // namespace

ZipFile::ZipFile(const std::string& path) : path_(path) {
  const RegularFile opened = open_regular_file(path);
  if (opened.error != 0) throw UsageError("cannot open " + path + ": " + opened.problem);
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
    if (got < 0) fail(std::string("cannot be read: ") + std::strerror(errno));
    if (got == 0)
      fail("the file ends at byte " + std::to_string(offset) + " but had " + std::to_string(size_) +
           " bytes when it was opened");
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
  throw ParseError(path_ + ": " + message, {},
                   "the file is damaged, truncated, or not written by torch.export.save");
}

ZipFile::Directory ZipFile::find_directory() const {
  if (size_ < end_size) fail("the file is too short to be a zip file");
  // A comment of at most 64 KiB follows the end record; a zip64 locator may precede it.
  const std::uint64_t length = std::min<std::uint64_t>(size_, locator_size + end_size + 0xffff);
  const std::vector<std::uint8_t> tail = bytes_at(size_ - length, length);
  const std::span<const std::uint8_t> bytes(tail);
  for (std::size_t at = bytes.size() - end_size + 1; at-- > 0;) {
    if (number_at<std::uint32_t>(bytes, at) != end_mark ||
        at + end_size + number_at<std::uint16_t>(bytes, at + 20) != bytes.size()) {
      continue;
    }
    if (at < locator_size || number_at<std::uint32_t>(bytes, at - locator_size) != locator64_mark) {
      return {number_at<std::uint32_t>(bytes, at + 16), number_at<std::uint32_t>(bytes, at + 12),
              number_at<std::uint16_t>(bytes, at + 10)};
    }
    const auto place = number_at<std::uint64_t>(bytes, at - locator_size + 8);
    if (place > size_ || size_ - place < end64_size) fail("the offset of the zip64 directory is invalid");
    const std::vector<std::uint8_t> end64 = bytes_at(place, end64_size);
    if (number_at<std::uint32_t>(end64, 0) != end64_mark)
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
    if (table.size() - at < entry_size || number_at<std::uint32_t>(table, at) != entry_mark) {
      fail("entry " + std::to_string(i) + " of the directory is damaged");
    }
    const std::size_t name_size = number_at<std::uint16_t>(table, at + 28);
    const std::size_t extra_size = number_at<std::uint16_t>(table, at + 30);
    const std::size_t comment_size = number_at<std::uint16_t>(table, at + 32);
    if (table.size() - at - entry_size < name_size + extra_size + comment_size) {
      fail("entry " + std::to_string(i) + " of the directory is truncated");
    }
    Record record{.offset = number_at<std::uint32_t>(table, at + 42),
                  .size = number_at<std::uint32_t>(table, at + 24),
                  .stored = number_at<std::uint32_t>(table, at + 20),
                  .crc = number_at<std::uint32_t>(table, at + 16),
                  .method = number_at<std::uint16_t>(table, at + 10)};
    std::string name(reinterpret_cast<const char*>(table.data()) + at + entry_size, name_size);
    const auto extra = table.subspan(at + entry_size + name_size, extra_size);
    for (std::size_t e = 0; e + 4 <= extra.size();) {
      const std::size_t size = number_at<std::uint16_t>(extra, e + 2);
      if (extra.size() - e - 4 < size) fail("entry " + quote(name) + " has a damaged extra field");
      if (number_at<std::uint16_t>(extra, e) == 1) {
        std::size_t next = e + 4;
        for (std::uint64_t* field : {&record.size, &record.stored, &record.offset}) {
          if (*field != 0xffffffff) continue;
          if (next + 8 > e + 4 + size) fail("entry " + quote(name) + " has a damaged extra field");
          *field = number_at<std::uint64_t>(extra, next);
          next += 8;
        }
      }
      e += 4 + size;
    }
    const std::size_t slash = name.find('/');
    if (slash != std::string::npos) name.erase(0, slash + 1);
    if (!records_.emplace(name, record).second) fail("duplicate record " + quote(name));
    at += entry_size + name_size + extra_size + comment_size;
  }
}

std::vector<std::string> ZipFile::names() const {
  std::vector<std::string> names;
  for (const auto& [name, record] : records_) names.push_back(name);
  return names;
}

const ZipFile::Record& ZipFile::find(const std::string& name) const {
  const auto it = records_.find(name);
  if (it == records_.end()) fail("missing record " + quote(name, 200));
  return it->second;
}

std::uint64_t ZipFile::size(const std::string& name) const {
  const Record& record = find(name);
  if (record.size > size_) fail("record " + quote(name, 200) + " is truncated");
  return record.size;
}

std::vector<std::uint8_t> ZipFile::read(const std::string& name) const {
  std::vector<std::uint8_t> bytes(size(name));
  read(name, bytes);
  return bytes;
}

void ZipFile::read(const std::string& name, std::span<std::uint8_t> target) const {
  const Record& record = find(name);
  if (record.method != 0 || record.stored != record.size) {
    throw ParseError(path_ + ": record " + quote(name, 200) + " is compressed", {},
                     "write the archive with torch.export.save, which does not compress");
  }
  const auto misplaced = [&] { fail("the offset of record " + quote(name, 200) + " is invalid"); };
  if (record.offset > size_ || size_ - record.offset < local_size) misplaced();
  const std::vector<std::uint8_t> local = bytes_at(record.offset, local_size);
  if (number_at<std::uint32_t>(local, 0) != local_mark) misplaced();
  const std::uint64_t skip =
      local_size + number_at<std::uint16_t>(local, 26) + number_at<std::uint16_t>(local, 28);
  const std::uint64_t room = size_ - record.offset;
  if (room < skip || room - skip < record.size) fail("record " + quote(name, 200) + " is truncated");
  if (target.size() != record.size)
    throw UsageError("record " + quote(name, 200) + " and the target differ in size");
  read_at(record.offset + skip, target);
  if (crc32(target) != record.crc)
    fail("record " + quote(name, 200) + " is damaged: the checksum does not match");
}

}  // namespace penstock
