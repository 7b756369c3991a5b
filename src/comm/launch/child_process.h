// The process of one rank: it has pipes for its output and its own process group, and is killed when its
// parent dies.
#pragma once

#include "comm/failure/sockets.h"
#include "comm/launch/line_reader.h"

#include <sys/resource.h>
#include <sys/types.h>

#include <map>
#include <string>
#include <vector>

namespace penstock::comm {

struct ChildProcess {
  pid_t pid = -1;
  Fd pidfd;     //!< readable when the process has ended; empty if the system does not provide one
  Fd out, err;  //!< non-blocking
  LineReader out_lines, err_lines;
};

//! Starts the program. `time_limit` is the soft limit of its RLIMIT_RTTIME, which marks the processes of a
//! job (see process_tree.h); it is left alone if the hard limit is lower. If `out_path` or `err_path` is set,
//! output goes to that file instead of the pipe. Throws UsageError if the program cannot be executed.
ChildProcess start_child(const std::vector<std::string>& command,
                         const std::map<std::string, std::string>& environment, rlim_t time_limit,
                         const std::string& out_path = {}, const std::string& err_path = {});

}  // namespace penstock::comm
