// Runs a program and keeps what it wrote: for tests through the real binaries.
#pragma once

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

//! A fresh directory that goes away with the object.
class TempDir {
 public:
  TempDir() {
    const char* base = std::getenv("TMPDIR");
    path_ = std::string(base != nullptr ? base : "/tmp") + "/penstock-test-XXXXXX";
    if (mkdtemp(path_.data()) == nullptr) std::abort();
  }
  ~TempDir() { [[maybe_unused]] const int ignored = std::system(("rm -rf '" + path_ + "'").c_str()); }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

//! Runs `words[0]` with the rest as its arguments and no standard input; `settings` are `NAME=VALUE` on top
//! of our environment.
inline Outcome run_program(const std::vector<std::string>& words,
                           const std::vector<std::string>& settings = {}) {
  const TempDir dir;
  const pid_t child = fork();
  if (child == 0) {
    const bool ok = std::freopen("/dev/null", "r", stdin) &&
                    std::freopen((dir / "out").c_str(), "w", stdout) &&
                    std::freopen((dir / "err").c_str(), "w", stderr);
    for (const std::string& setting : settings) putenv(const_cast<char*>(setting.c_str()));
    std::vector<char*> argv;
    for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
    argv.push_back(nullptr);
    if (ok) execvp(argv[0], argv.data());
    _exit(127);
  }
  int status = 0;
  waitpid(child, &status, 0);
  Outcome outcome;
  outcome.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  outcome.out = slurp(dir / "out");
  outcome.err = slurp(dir / "err");
  return outcome;
}

//! Runs `penstock` (the tool of this build).
#ifdef PENSTOCK_TOOL
inline Outcome penstock(std::vector<std::string> words) {
  words.insert(words.begin(), PENSTOCK_TOOL);
  return run_program(words);
}
#endif

}  // namespace penstock::test
