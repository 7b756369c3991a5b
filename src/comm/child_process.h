// One rank's process: started with pipes for its output, in a process group of its own, ended with its
// parent.
#pragma once

#include "comm/sockets.h"

#include <sys/types.h>

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace penstock {

//! Splits a stream of bytes into lines.
class LineReader {
 public:
  //! Reads what is there; false at the end of the stream (a last line without newline is given too).
  bool read(int fd, const std::function<void(std::string_view)>& on_line);

 private:
  std::string partial_;
};

struct ChildProcess {
  pid_t pid = -1;
  Fd pidfd;  //!< readable once the process has ended
  Fd out, err;
  LineReader out_lines, err_lines;
};

//! Starts the program. `out_path`/`err_path`, if not empty, get the output instead of the pipes. UsageError
//! if it cannot be executed.
ChildProcess start_child(const std::vector<std::string>& command,
                         const std::map<std::string, std::string>& environment,
                         const std::string& out_path = {}, const std::string& err_path = {});

}  // namespace penstock
