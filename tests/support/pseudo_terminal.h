// Runs a program on a pseudo-terminal, to test what it prints there.
#pragma once

#include "support/program.h"

#include <fcntl.h>
#include <sys/ioctl.h>

#include <array>
#include <stdexcept>

namespace penstock::test {

//! Runs a program whose standard streams are a terminal of 100 columns. `settings` are `NAME=VALUE` pairs
//! added to our environment. `out` has all output, with the line ends of a terminal (CR LF).
inline Outcome run_on_terminal(const std::vector<std::string>& words,
                               const std::vector<std::string>& settings = {}) {
  const int terminal = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
  if (terminal < 0 || grantpt(terminal) != 0 || unlockpt(terminal) != 0)
    throw std::runtime_error("cannot create a pseudo-terminal");
  const std::string name = ptsname(terminal);
  winsize size{.ws_row = 24, .ws_col = 100, .ws_xpixel = 0, .ws_ypixel = 0};
  ioctl(terminal, TIOCSWINSZ, &size);
  // Keep the other end open, so that reading ends with the program and not before it starts.
  const int end = open(name.c_str(), O_RDWR | O_NOCTTY | O_CLOEXEC);
  const pid_t child = fork();
  if (child == 0) {
    setsid();
    for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) dup2(end, stream);
    for (const std::string& setting : settings) putenv(const_cast<char*>(setting.c_str()));
    std::vector<char*> argv;
    for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
    argv.push_back(nullptr);
    execvp(argv[0], argv.data());
    _exit(127);
  }
  close(end);
  Outcome outcome;
  std::array<char, 4096> buffer{};
  for (ssize_t got = 0; (got = read(terminal, buffer.data(), buffer.size())) > 0;)
    outcome.out.append(buffer.data(), static_cast<std::size_t>(got));
  close(terminal);
  int status = 0;
  waitpid(child, &status, 0);
  outcome.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return outcome;
}

}  // namespace penstock::test
