// The file system operations used for safetensors files and checkpoints. Tests replace them with a layer
// that fails after a given number of operations.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::checkpoint {

//! A file that is being written. If it is destroyed without `finish`, the partial file stays on disk.
class OutputFile {
 public:
  virtual ~OutputFile() = default;
  virtual void write(std::span<const std::uint8_t> bytes) = 0;
  //! Flushes to disk and closes.
  virtual void finish() = 0;

  void write(std::string_view text);
};

//! Every function throws StorageError with the path and the error of the system.
class FileSystem {
 public:
  virtual ~FileSystem() = default;
  //! Creates a file; truncates an existing one.
  virtual std::unique_ptr<OutputFile> create(const std::string& path) = 0;
  //! Creates a directory and its parents; it may exist.
  virtual void make_directory(const std::string& path) = 0;
  virtual void rename(const std::string& from, const std::string& to) = 0;
  //! Atomically exchanges the names of two existing paths.
  virtual void exchange(const std::string& a, const std::string& b) = 0;
  //! Makes creations, renames and removals in a directory durable.
  virtual void sync_directory(const std::string& path) = 0;
  //! Removes a file, or a directory recursively; the path need not exist.
  virtual void remove(const std::string& path) = 0;
};

//! Returns the operations on the real file system.
FileSystem& disk();

//! Returns the parent directory of a path; `.` if the path has none.
std::string parent_directory(const std::string& path);

//! Returns the sorted names in a directory. Throws StorageError if it cannot be read.
std::vector<std::string> list_directory(const std::string& path);

//! A regular file that is read by position and never mapped, so that a file truncated during the read causes
//! an error instead of a SIGBUS.
class InputFile {
 public:
  //! Throws StorageError if the path cannot be opened or is a FIFO, a device, a socket or a directory.
  explicit InputFile(const std::string& path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  const std::string& path() const { return path_; }
  std::uint64_t size() const { return size_; }
  //! Throws StorageError if the file was truncated or cannot be read.
  void read(std::uint64_t offset, std::span<std::uint8_t> target) const;

 private:
  std::string path_;
  int file_ = -1;
  std::uint64_t size_ = 0;
};

//! Reads a complete file. Throws StorageError if it has more than `limit` bytes.
std::string read_all(const std::string& path, std::uint64_t limit);

}  // namespace penstock::checkpoint
