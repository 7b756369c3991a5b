// File descriptor limits: raising, checking, counting.
#include "comm/failure/descriptor_limit.h"

#include "base/text.h"
#include "comm/failure/sockets.h"

#include <penstock/base/error.h>

#include <dirent.h>
#include <fcntl.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>

namespace penstock::comm {
namespace {

// Returns the number of open descriptors of this process; -1 if they cannot be counted.
long open_descriptors() {
  DIR* const directory = opendir("/proc/self/fd");
  if (directory == nullptr) return -1;
  long count = -3;  // ".", ".." and the descriptor of the directory itself
  while (readdir(directory) != nullptr) ++count;
  closedir(directory);
  return count;
}

}  // namespace

void raise_descriptor_limit() {
  constexpr rlim_t enough = 65536;
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= enough) return;
  limit.rlim_cur = std::min(limit.rlim_max, enough);
  setrlimit(RLIMIT_NOFILE, &limit);
}

bool out_of_descriptors() {
  constexpr rlim_t ample = 4096;  // a job needs fewer; only foreign connections can use up more
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= ample) return false;
  const Fd one(open("/dev/null", O_RDONLY | O_CLOEXEC));
  return !one && errno == EMFILE;
}

void require_descriptors(int count, const std::string& purpose) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return;
  const auto most = static_cast<long>(limit.rlim_cur);
  errno = 0;
  const long open = open_descriptors();
  if (open < 0 && errno != EMFILE) return;  // without /proc the number is unknown
  const long used = open < 0 ? most : open;
  if (used + count <= most) return;
  throw CommError(str_cat("too few file descriptors for ", purpose, ": ", count, " more are needed, ", used,
                          " are open, and the limit is ", most),
                  {}, "raise the limit, for example with `ulimit -n 4096`");
}

}  // namespace penstock::comm
