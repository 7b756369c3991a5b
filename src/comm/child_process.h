// One rank's process: started with pipes for its output, in a process group of its own, ended with its
// parent.
#pragma once

#include "comm/line_reader.h"
#include "comm/sockets.h"

#include <sys/types.h>

#include <map>
#include <string>
#include <vector>

namespace penstock {

struct ChildProcess {
  pid_t pid = -1;
  Fd pidfd;     //!< readable once the process has ended; none where the system refuses one
  Fd out, err;  //!< non-blocking
  LineReader out_lines, err_lines;
};

//! Starts the program. `out_path`/`err_path`, if not empty, get the output instead of the pipes. UsageError
//! if it cannot be executed.
ChildProcess start_child(const std::vector<std::string>& command,
                         const std::map<std::string, std::string>& environment,
                         const std::string& out_path = {}, const std::string& err_path = {});

}  // namespace penstock
