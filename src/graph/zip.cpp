// The zip directory, with the 64-bit extensions; every offset is checked before it is followed.
#include "graph/zip.h"

#include "value/crc32.h"

#include <penstock/base/error.h>
#include <penstock/base/text.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace penstock {
namespace {

constexpr std::uint32_t local_mark = 0x04034b50, entry_mark = 0x02014b50, end_mark = 0x06054b50,
                        end64_mark = 0x06064b50, locator64_mark = 0x07064b50;
constexpr std::size_t end_size = 22, end64_size = 56, locator_size = 20, entry_size = 46, local_size = 30;

//! A little-endian number; the caller has checked that it is inside.
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
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) throw UsageError("cannot open " + path + ": " + std::strerror(errno));
  struct stat status {};
  if (::fstat(file, &status) != 0 || !S_ISREG(status.st_mode)) {
    ::close(file);
    throw UsageError(path + " is no regular file");
  }
  const auto size = static_cast<std::size_t>(status.st_size);
  if (size > 0) {
    void* data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file, 0);
    if (data == MAP_FAILED) {
      ::close(file);
      throw UsageError("cannot map " + path + ": " + std::strerror(errno));
    }
    bytes_ = {static_cast<const std::uint8_t*>(data), size};
  }
  ::close(file);
  try {
    read_directory(find_directory());
  } catch (...) {
    if (!bytes_.empty()) ::munmap(const_cast<std::uint8_t*>(bytes_.data()), bytes_.size());
    throw;
  }
}

ZipFile::~ZipFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::uint8_t*>(bytes_.data()), bytes_.size());
}

void ZipFile::fail(const std::string& message) const {
  throw ParseError(path_ + ": " + message, {},
                   "the file is damaged, cut short, or no archive of torch.export.save");
}

ZipFile::Directory ZipFile::find_directory() const {
  if (bytes_.size() < end_size) fail("too short for a zip file");
  const std::size_t last = bytes_.size() - end_size;
  std::size_t at = last + 1;
  do {
    --at;
    if (number_at<std::uint32_t>(bytes_, at) == end_mark &&
        at + end_size + number_at<std::uint16_t>(bytes_, at + 20) == bytes_.size()) {
      Directory found{number_at<std::uint32_t>(bytes_, at + 16), number_at<std::uint32_t>(bytes_, at + 12),
                      number_at<std::uint16_t>(bytes_, at + 10)};
      if (at < locator_size || number_at<std::uint32_t>(bytes_, at - locator_size) != locator64_mark)
        return found;
      const auto end64 = number_at<std::uint64_t>(bytes_, at - locator_size + 8);
      if (end64 > bytes_.size() || bytes_.size() - end64 < end64_size ||
          number_at<std::uint32_t>(bytes_, end64) != end64_mark) {
        fail("the 64-bit directory is not where it should be");
      }
      return {number_at<std::uint64_t>(bytes_, end64 + 48), number_at<std::uint64_t>(bytes_, end64 + 40),
              number_at<std::uint64_t>(bytes_, end64 + 32)};
    }
  } while (at > 0 && last - at < 0xffff);
  fail("no zip directory at its end");
}

void ZipFile::read_directory(const Directory& directory) {
  if (directory.offset > bytes_.size() || directory.size > bytes_.size() - directory.offset) {
    fail("the directory reaches beyond the end of the file");
  }
  const auto table = bytes_.subspan(directory.offset, directory.size);
  std::size_t at = 0;
  for (std::uint64_t i = 0; i < directory.count; ++i) {
    if (table.size() - at < entry_size || number_at<std::uint32_t>(table, at) != entry_mark) {
      fail("entry " + std::to_string(i) + " of the directory is damaged");
    }
    const std::size_t name_size = number_at<std::uint16_t>(table, at + 28);
    const std::size_t extra_size = number_at<std::uint16_t>(table, at + 30);
    const std::size_t comment_size = number_at<std::uint16_t>(table, at + 32);
    if (table.size() - at - entry_size < name_size + extra_size + comment_size) {
      fail("entry " + std::to_string(i) + " of the directory is cut short");
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
    if (!records_.emplace(name, record).second) fail("two records are called " + quote(name));
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
  if (it == records_.end()) fail("there is no record " + quote(name, 200));
  return it->second;
}

std::uint64_t ZipFile::size(const std::string& name) const {
  return find(name).size;
}

std::span<const std::uint8_t> ZipFile::read(const std::string& name) const {
  const Record& record = find(name);
  if (record.method != 0 || record.stored != record.size) {
    throw ParseError(path_ + ": record " + quote(name, 200) + " is compressed", {},
                     "write the archive with torch.export.save, which does not compress");
  }
  if (record.offset > bytes_.size() || bytes_.size() - record.offset < local_size ||
      number_at<std::uint32_t>(bytes_, record.offset) != local_mark) {
    fail("record " + quote(name, 200) + " is not where the directory says");
  }
  const std::uint64_t skip = local_size + number_at<std::uint16_t>(bytes_, record.offset + 26) +
                             number_at<std::uint16_t>(bytes_, record.offset + 28);
  const std::uint64_t room = bytes_.size() - record.offset;
  if (room < skip || room - skip < record.size) fail("record " + quote(name, 200) + " is cut short");
  const auto content = bytes_.subspan(record.offset + skip, record.size);
  if (crc32(content) != record.crc) fail("record " + quote(name, 200) + " is damaged: its checksum differs");
  return content;
}

}  // namespace penstock
