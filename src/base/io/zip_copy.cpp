// Writes new contents and their checksums in place.
#include "base/io/zip_copy.h"

#include "base/io/crc32.h"
#include "base/io/storage_error.h"
#include "base/text.h"

#include <penstock/base/error.h>

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <utility>

namespace penstock {

namespace fs = std::filesystem;

ZipCopy::ZipCopy(const fs::path& source, fs::path target)
    : zip_(source.string()),
      target_(std::move(target)),
      temporary_(str_cat(target_.string(), ".writing-", ::getpid())) {
  std::error_code error;
  fs::copy_file(source, temporary_, fs::copy_options::overwrite_existing, error);
  if (error) throw_storage_error("write", temporary_.string(), error.value());
  file_ = ::open(temporary_.c_str(), O_WRONLY | O_CLOEXEC);
  if (file_ >= 0) return;
  const int code = errno;
  ::unlink(temporary_.c_str());
  throw_storage_error("open", temporary_.string(), code);
}

ZipCopy::~ZipCopy() {
  if (file_ < 0) return;
  ::close(file_);
  ::unlink(temporary_.c_str());
}

void ZipCopy::write_at(std::uint64_t offset, std::span<const std::uint8_t> bytes) {
  while (!bytes.empty()) {
    const ssize_t done = ::pwrite(file_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) throw_storage_error("write", temporary_.string(), errno);
    offset += static_cast<std::uint64_t>(done);
    bytes = bytes.subspan(static_cast<std::size_t>(done));
  }
}

void ZipCopy::replace(const std::string& name, std::span<const std::uint8_t> bytes) {
  const ZipFile::Location location = zip_.locate(name);
  if (bytes.size() != location.size)
    throw UsageError("record " + quote(name, 200) + " and its new content differ in size");
  write_at(location.data, bytes);
  const std::uint32_t crc = crc32(bytes);
  std::array<std::uint8_t, 4> stored{};
  for (std::size_t i = 0; i < stored.size(); ++i) stored[i] = static_cast<std::uint8_t>(crc >> (8 * i));
  for (const std::uint64_t offset : location.checksums) write_at(offset, stored);
}

void ZipCopy::finish() {
  if (::fsync(file_) != 0) throw_storage_error("write", temporary_.string(), errno);
  std::error_code error;
  fs::rename(temporary_, target_, error);
  if (error) throw_storage_error("write", target_.string(), error.value());
  ::close(std::exchange(file_, -1));
}

}  // namespace penstock
