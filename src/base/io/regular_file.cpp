// Opens input files.
#include "base/io/regular_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace penstock {
namespace {

const char* kind_of(mode_t mode) {
  switch (mode & S_IFMT) {
    case S_IFREG:
      return nullptr;
    case S_IFDIR:
      return "a directory";
    case S_IFIFO:
      return "a FIFO";
    case S_IFSOCK:
      return "a socket";
    default:
      return "a device";
  }
}

RegularFile refused(int error) {
  return {.error = error, .problem = std::strerror(error)};
}

RegularFile refused(const struct stat& status) {
  return {.error = S_ISDIR(status.st_mode) ? EISDIR : EINVAL,
          .problem = std::string("it is ") + kind_of(status.st_mode) + ", not a regular file"};
}

}  // namespace

RegularFile open_regular_file(const std::string& path) {
  // Checks the type before opening, because opening a device can have side effects, and again afterwards,
  // because the file may have been replaced.
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return refused(errno);
  if (!S_ISREG(status.st_mode)) return refused(status);
  const int file = ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
  if (file < 0) return refused(errno);
  if (::fstat(file, &status) != 0 || !S_ISREG(status.st_mode)) {
    ::close(file);
    return refused(status);
  }
  return {.descriptor = file, .size = static_cast<std::uint64_t>(status.st_size)};
}

}  // namespace penstock
