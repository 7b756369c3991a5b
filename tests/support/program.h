// Runs a program and captures its output, for tests of the real binaries.
#pragma once

#include "support/temp_dir.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace penstock::test {

struct Outcome {
  int code = -1;  //!< exit code, or 128 + signal
  std::string out;
  std::string err;
};

inline std::string slurp(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

//! A running program: `words[0]` with the remaining words as arguments and no standard input. `settings` are
//! `NAME=VALUE` pairs added to our environment.
class Program {
 public:
  explicit Program(const std::vector<std::string>& words, const std::vector<std::string>& settings = {}) {
    std::fflush(nullptr);  // otherwise the child would write it again
    child_ = fork();
    if (child_ != 0) return;
    const bool ok = std::freopen("/dev/null", "r", stdin) &&
                    std::freopen((dir_ / "out").c_str(), "w", stdout) &&
                    std::freopen((dir_ / "err").c_str(), "w", stderr);
    for (const std::string& setting : settings) putenv(const_cast<char*>(setting.c_str()));
    std::vector<char*> argv;
    for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
    argv.push_back(nullptr);
    if (ok) execvp(argv[0], argv.data());
    _exit(127);
  }

  pid_t pid() const { return child_; }
  bool ended() {
    if (!ended_) ended_ = waitpid(child_, &status_, WNOHANG) == child_;
    return ended_;
  }
  //! The output so far.
  std::string out() const { return slurp(dir_ / "out"); }
  std::string err() const { return slurp(dir_ / "err"); }

  //! Waits until the program ends.
  Outcome finish() {
    if (!ended_) waitpid(child_, &status_, 0);
    ended_ = true;
    Outcome outcome;
    outcome.code = WIFEXITED(status_) ? WEXITSTATUS(status_) : 128 + WTERMSIG(status_);
    outcome.out = out();
    outcome.err = err();
    return outcome;
  }

 private:
  TempDir dir_;
  pid_t child_ = -1;
  int status_ = 0;
  bool ended_ = false;
};

inline Outcome run_program(const std::vector<std::string>& words,
                           const std::vector<std::string>& settings = {}) {
  return Program(words, settings).finish();
}

//! Whether a program is installed.
inline bool has_program(const std::string& name) {
  return run_program({"sh", "-c", "command -v " + name}).code == 0;
}

//! Runs the `penstock` tool of this build.
#ifdef PENSTOCK_TOOL
inline Outcome penstock(std::vector<std::string> words) {
  words.insert(words.begin(), PENSTOCK_TOOL);
  return run_program(words);
}
#endif

}  // namespace penstock::test
