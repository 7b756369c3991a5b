// Implements the file system operations.
#include "checkpoint/commit/files.h"

#include "base/io/regular_file.h"
#include "base/io/storage_error.h"
#include "base/text.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>

namespace penstock::checkpoint {
namespace {

class DiskFile : public OutputFile {
 public:
  explicit DiskFile(const std::string& path)
      : path_(path), file_(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666)) {
    if (file_ < 0) throw_storage_error("create", path, errno);
  }
  ~DiskFile() override {
    if (file_ >= 0) ::close(file_);
  }
  DiskFile(const DiskFile&) = delete;
  DiskFile& operator=(const DiskFile&) = delete;

  void write(std::span<const std::uint8_t> bytes) override {
    while (!bytes.empty()) {
      const ssize_t written = ::write(file_, bytes.data(), bytes.size());
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) throw_storage_error("write to", path_, errno);
      bytes = bytes.subspan(static_cast<std::size_t>(written));
    }
  }

  void finish() override {
    if (::fsync(file_) != 0) throw_storage_error("flush", path_, errno);
    const int file = file_;
    file_ = -1;
    if (::close(file) != 0) throw_storage_error("close", path_, errno);
  }

 private:
  std::string path_;
  int file_;
};

class Disk : public FileSystem {
 public:
  std::unique_ptr<OutputFile> create(const std::string& path) override {
    return std::make_unique<DiskFile>(path);
  }

  void make_directory(const std::string& path) override {
    std::error_code error;
    std::filesystem::create_directories(path, error);
    if (error) throw_storage_error("create the directory", path, error.value());
  }

  void rename(const std::string& from, const std::string& to) override {
    if (::rename(from.c_str(), to.c_str()) != 0)
      throw_storage_error("rename " + quote(from, 200) + " to", to, errno);
  }

  void exchange(const std::string& a, const std::string& b) override {
    if (::renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE) != 0)
      throw_storage_error("exchange " + quote(a, 200) + " and", b, errno);
  }

  void sync_directory(const std::string& path) override {
    const int file = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (file < 0) throw_storage_error("open", path, errno);
    const int result = ::fsync(file);
    const int code = errno;
    ::close(file);
    if (result != 0) throw_storage_error("flush", path, code);
  }

  void remove(const std::string& path) override {
    std::error_code error;
    std::filesystem::remove_all(path, error);
    if (error) throw_storage_error("remove", path, error.value());
  }
};

}  // namespace

void OutputFile::write(std::string_view text) {
  write(std::span(reinterpret_cast<const std::uint8_t*>(text.data()), text.size()));
}

FileSystem& disk() {
  static Disk files;
  return files;
}

std::string parent_directory(const std::string& path) {
  const std::string parent = std::filesystem::path(path).parent_path().string();
  return parent.empty() ? "." : parent;
}

std::vector<std::string> list_directory(const std::string& path) {
  std::error_code error;
  std::vector<std::string> names;
  for (std::filesystem::directory_iterator it(path, error), end; !error && it != end; it.increment(error)) {
    names.push_back(it->path().filename().string());
  }
  if (error) throw_storage_error("read the directory", path, error.value());
  std::sort(names.begin(), names.end());
  return names;
}

InputFile::InputFile(const std::string& path) : path_(path) {
  const RegularFile opened = open_regular_file(path);
  if (opened.error != 0) throw_storage_error("open", path, opened.error, opened.problem);
  file_ = opened.descriptor;
  size_ = opened.size;
}

InputFile::~InputFile() {
  ::close(file_);
}

void InputFile::read(std::uint64_t offset, std::span<std::uint8_t> target) const {
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

std::string read_all(const std::string& path, std::uint64_t limit) {
  const InputFile file(path);
  if (file.size() > limit) throw_storage_error("read", path, EFBIG, "it is too large");
  std::string text(file.size(), '\0');
  file.read(0, {reinterpret_cast<std::uint8_t*>(text.data()), text.size()});
  return text;
}

}  // namespace penstock::checkpoint
