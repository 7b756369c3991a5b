// The few operations on disk that safetensors files and checkpoints are made of. Tests put a layer in their
// place that fails after any number of them.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace penstock {

//! A file that is being written. Destroyed without `finish` it stays as it is on disk.
class OutputFile {
 public:
  virtual ~OutputFile() = default;
  virtual void write(std::span<const std::uint8_t> bytes) = 0;
  //! Flushes to disk and closes.
  virtual void finish() = 0;

  void write(std::string_view text);
};

//! Every function throws StorageError with the path and the system's reason.
class Files {
 public:
  virtual ~Files() = default;
  //! A new file; an old one of this name is emptied.
  virtual std::unique_ptr<OutputFile> create(const std::string& path) = 0;
  //! With its parents; one that exists is fine.
  virtual void make_directory(const std::string& path) = 0;
  virtual void rename(const std::string& from, const std::string& to) = 0;
  //! Two that exist change names at once.
  virtual void exchange(const std::string& a, const std::string& b) = 0;
  //! Makes what was created, renamed or removed in a directory last.
  virtual void sync_directory(const std::string& path) = 0;
  //! A file or a directory with all that is in it; what does not exist is fine.
  virtual void remove(const std::string& path) = 0;
};

//! The real ones.
Files& disk();

//! The directory that a path lies in; `.` if it names none.
std::string parent_directory(const std::string& path);

//! Names in a directory, sorted. StorageError if it cannot be read.
std::vector<std::string> list_directory(const std::string& path);

//! A regular file that is read by position, never mapped: one that becomes shorter meanwhile is an error, not
//! a SIGBUS.
class InputFile {
 public:
  //! StorageError for what cannot be opened or is a FIFO, a device, a socket or a directory.
  explicit InputFile(const std::string& path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  const std::string& path() const { return path_; }
  std::uint64_t size() const { return size_; }
  //! StorageError if the file has become shorter or cannot be read.
  void read(std::uint64_t offset, std::span<std::uint8_t> target) const;

 private:
  std::string path_;
  int file_ = -1;
  std::uint64_t size_ = 0;
};

//! A whole file; StorageError if it is longer than `limit`.
std::string read_whole(const std::string& path, std::uint64_t limit);

}  // namespace penstock
